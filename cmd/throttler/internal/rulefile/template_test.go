package rulefile_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
)

func TestWhatAnAttributeNeeds(t *testing.T) {
	const agent = "header:User-Agent"
	for attribute, c := range map[string]struct {
		uses    string // of a log
		robots  bool   // needs to know who robots are
		skipped bool   // for a request of which nothing is known
	}{
		"address": {"address", false, true}, "network": {"network", false, true}, "prefix": {"prefix", false, true},
		"method": {"method", false, true}, "host": {"host", false, true}, "path": {"path", false, true}, "route": {"route", false, false},
		"user": {"user", false, true}, "header:A": {"header:A", false, true}, "cookie:a": {"cookie:a", false, true}, "field:a": {"field:a", false, true},
		"robot": {agent, true, false}, "group": {agent, true, true}, "standing": {agent, true, false},
		"asn": {"asn", true, true}, "hoster": {"hoster", true, true},
	} {
		source := fmt.Sprintf(`rules: [{name: a, for: {path: [/**]}, either: [{name: b, value: "{%s}", max: 1, per: 1m, missing: skip}]}]`, attribute)
		file, err := rulefile.Parse("x", []byte(source))
		require.NoError(t, err, attribute)
		assert.Equal(t, []string{c.uses}, file.Rules[0].Uses(), attribute)
		assert.Equal(t, c.robots, file.Robots != nil, attribute)
		_, counted := file.Rules[0].Fill(new(rulefile.Request))
		assert.Equal(t, c.skipped, !counted, attribute)
	}
}
