package httpthrottle

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestProblemDetailsAreEncodedAsPackageJSONDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(
			rapid.StringMatching("[ a-z.;=/%0-9~-]{0,20}"),
			rapid.SampledFrom([]string{"<b>", "1&2", `"`, `\`, "\x7f", "\t", "\u2028", "ä", "\xff"}),
			rapid.String(),
		)
		texts := rapid.SliceOfN(text, 0, 3)
		p := problemDetails{
			Type:             rapid.SampledFrom([]string{"", quotaExceeded}).Draw(t, "Type"),
			Title:            text.Draw(t, "Title"),
			Status:           rapid.IntRange(200, 999).Draw(t, "Status"),
			ViolatedPolicies: texts.Draw(t, "ViolatedPolicies"),
			Messages:         texts.Draw(t, "Messages"),
			RetryAfter:       rapid.Int64Range(0, 1<<40).Draw(t, "RetryAfter"),
		}
		p.Detail = strings.Join(p.Messages, "; ")
		want, err := json.Marshal(p)
		require.NoError(t, err)
		require.Equal(t, string(want), string(p.encode()))
	})
}
