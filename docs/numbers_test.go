package docs_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/pool"
)

// Numbers that the pages tell are those of the packages.
func TestThePagesTellTheNumbersOfThePackages(t *testing.T) {
	for _, told := range []struct {
		page, text string
		numbers    []any
	}{
		{"rules.md", "At most %s calls of a process wait for one condition.", []any{thousands(throttler.MaxWaiting)}},
		{"rules.md", "| largest Max | %s |", []any{thousands(throttler.MaxHits)}},
		{"operations.md", "`LockoutGrowth` remembers bans for %s after they have ended", []any{days(throttler.LockoutMemory)}},
		{"http.md", "for at most `MaxDelayed` requests at once (%d).", []any{httpthrottle.DefaultMaxDelayed}},
		{"login.md", "for %d to %d days after a success there (`KnownFor`)", []any{int(login.DefaultKnownFor.Hours() / 24), int(2 * login.DefaultKnownFor.Hours() / 24)}},
		{"operations.md", "it holds %s records and %d MiB by default", []any{thousands(memstore.DefaultMaxItems), memstore.DefaultMaxBytes >> 20}},
		{"operations.md", "once per `BlockCacheTTL` and process. Default: %d s", []any{int(throttler.DefaultBlockCacheTTL.Seconds())}},
		{"operations.md", "| `Timeout` | %s |", []any{spaced(pool.DefaultTimeout)}},
		{"operations.md", "| `DialTimeout` | %s |", []any{spaced(pool.DefaultDialTimeout)}},
		{"operations.md", "| `QueueTimeout` | %s |", []any{spaced(pool.DefaultQueueTimeout)}},
		{"operations.md", "| `Conns` | %d per server |", []any{pool.DefaultConns}},
		{"operations.md", "| `MaxValue` | %d MiB |", []any{pool.DefaultMaxValue >> 20}},
		{"operations.md", "| `BreakerFailures` | %d in a row |", []any{pool.DefaultBreakerFailures}},
		{"operations.md", "| `BreakerPause` | %s |", []any{spaced(pool.DefaultBreakerPause)}},
		{"operations.md", "asks each for its statistics every %s", []any{spaced(pool.DefaultWatchEvery)}},
		{"login-lockout.md", "`SiegeFloor` (%d an hour) and\n  at most `SiegeCeiling` (%s)", []any{login.DefaultSiegeFloor, thousands(login.DefaultSiegeCeiling)}},
	} {
		page, err := os.ReadFile(told.page)
		require.NoError(t, err)
		text := words(fmt.Sprintf(told.text, told.numbers...))
		require.True(t, strings.Contains(words(string(page)), text), "%s does not say: %s", told.page, text)
	}
}

// words joins the lines of a text.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }

// thousands is n, of 1,000 or more, with its digits in groups of three.
func thousands(n int) string {
	if n < 1_000_000 {
		return fmt.Sprintf("%d,%03d", n/1000, n%1000)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// spaced is "250 ms" or "1 s".
func spaced(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%v s", d.Seconds())
}

func days(d time.Duration) string {
	if d == 24*time.Hour {
		return "a day"
	}
	return fmt.Sprintf("%v days", d.Hours()/24)
}
