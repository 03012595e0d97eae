package throttler_test

import (
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestASimulationRefusesAnInvalidRule(t *testing.T) {
	var simulation throttler.Simulation
	_, err := simulation.Authorize(time.Now(), throttler.Rule{})
	assert.ErrorIs(t, err, throttler.ErrInvalidRule)
}

// A log may have times without a year.
func TestASimulationRefusesTimesThatNoRecordCanHold(t *testing.T) {
	for year, fits := range map[int]bool{0: false, 1969: false, 1970: true, 2261: true, 2262: false} {
		for _, c := range ofEveryAlgorithm(1) {
			var simulation throttler.Simulation
			at := time.Date(year, time.January, 2, 15, 4, 5, 0, time.UTC)
			for i, want := range []throttler.Status{throttler.Authorized, throttler.Blocked} {
				d, err := simulation.Authorize(at.Add(time.Duration(i)*time.Second), either(c))
				if !fits {
					require.ErrorContains(t, err, "1970 to 2261")
					continue
				}
				require.NoError(t, err)
				require.Equal(t, want, d.Status, "%v in %d", c.Algorithm, year)
			}
		}
	}
}
