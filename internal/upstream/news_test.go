package upstream_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/internal/upstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errAway = errors.New("it does not answer")

// What comes while the program is told of something is told after it.
func TestAnOutageThatEndsWhileItIsToldIsToldAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var news upstream.News
		told := make(chan string, 10)
		telling := make(chan bool, 1)
		changed := func(server string, down bool, err error) {
			select {
			case telling <- true:
			default:
				assert.Fail(t, "another call is under way")
			}
			assert.Equal(t, down, err == errAway)
			time.Sleep(time.Second)
			told <- server
			<-telling
		}
		news.Note("one", errAway)
		news.Tell(changed)
		synctest.Wait()
		news.Note("two", errAway)
		news.Note("one", nil)
		news.Tell(changed)
		require.Empty(t, told, "nobody waits for that")
		for _, server := range []string{"one", "two", "one"} {
			require.Equal(t, server, <-told)
		}
		time.Sleep(time.Minute)
		require.Empty(t, told)
	})
}

// A program may note and tell while it is told.
func TestNoLockIsHeldWhileTheProgramIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var news upstream.News
		told := make(chan string, 10)
		var changed func(string, bool, error)
		changed = func(server string, down bool, _ error) {
			told <- server
			if down && server == "one" {
				news.Note("two", errAway)
				news.Tell(changed)
				news.Note("one", nil)
			}
		}
		news.Note("one", errAway)
		news.Tell(changed)
		for _, server := range []string{"one", "two", "one"} {
			require.Equal(t, server, <-told)
		}
		synctest.Wait()
		news.Note("one", errAway)
		news.Tell(nil)
		news.Tell(changed)
		synctest.Wait()
		require.Empty(t, told, "it did not want to know")
	})
}
