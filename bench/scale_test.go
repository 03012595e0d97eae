package main

import (
	"bytes"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMain lets the program of the tests be one of many processes, as bench is.
func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) == "" {
		os.Exit(m.Run())
	}
	if err := followOrders(os.Stdin, os.Stdout); err != nil {
		panic(err)
	}
}

func TestProcessesThatShareServersAdmitNoMoreThanTheLimits(t *testing.T) {
	started(t, onMemcached, "tcp")
	var out bytes.Buffer
	require.NoError(t, runScale(t.Context(), 3, 400*time.Millisecond, &out))
	t.Log(out.String())
	rows := regexp.MustCompile(`(?m)^\| [a-z ]+ \| [1-9]\d* \| (\d+) \|`).FindAllStringSubmatch(out.String(), -1)
	require.Len(t, rows, 5, "of five periods")
	require.NotEqual(t, "0", rows[2][1], "calls of the server that is lost are open")
	require.Contains(t, out.String(), "Over-admitted: 0.")
}

func TestAProcessThatFailsIsTold(t *testing.T) {
	started(t, onMemcached, "tcp")
	s, err := newScale(t.Context(), 2, time.Millisecond)
	require.NoError(t, err)
	defer s.close()
	require.NoError(t, s.workers[1].cmd.Process.Kill())
	_, err = s.play(t.Context())
	require.ErrorIs(t, err, errWorker)
}

func TestWhatIsAdmittedBeyondALimitIsFound(t *testing.T) {
	homes := map[string][]string{"hot": {"a"}, "stays": {"a"}, "moves": {"b", "a"}, "goes": {"b", "c", "d"}}
	of := func(admitted ...map[string]int) (periods []period) {
		for _, m := range admitted {
			periods = append(periods, period{sum: account{Admitted: m}})
		}
		return periods
	}
	assert.Equal(t, verdict{hot: 2000, stayed: 20, may: 20, moved: 99, mayMove: 100},
		judge(of(map[string]int{"hot": 1500, "stays": 20, "moves": 20}, map[string]int{"hot": 500, "moves": 19, "goes": 60}), homes, "hot"))
	assert.Equal(t, 3+1+2, judge(of(map[string]int{"hot": 2003, "stays": 11}, map[string]int{"stays": 10, "goes": 62}), homes, "hot").over)
}

func TestHomesOfValuesFollowTheLists(t *testing.T) {
	a, b := started(t, onMemcached, "tcp"), started(t, onMemcached, "tcp")
	values := []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
	of, err := homes(values, []string{a.addr, b.addr}, []string{b.addr}, []string{b.addr, a.addr})
	require.NoError(t, err)
	for _, value := range values {
		if of[value][0] == b.addr {
			require.Equal(t, []string{b.addr}, of[value])
		} else {
			require.Equal(t, []string{a.addr, b.addr}, of[value])
		}
	}
}
