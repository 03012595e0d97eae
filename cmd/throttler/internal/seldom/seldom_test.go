package seldom_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/seldom"
	"github.com/stretchr/testify/assert"
)

func TestAMinuteIsDueOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m seldom.Minute
		assert.True(t, m.Due())
		assert.False(t, m.Due())
		time.Sleep(time.Minute - 1)
		assert.False(t, m.Due())
		time.Sleep(time.Nanosecond)
		assert.True(t, m.Due())
	})
}
