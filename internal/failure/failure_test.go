package failure_test

import (
	"io"
	"testing"

	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
)

func TestErrorTexts(t *testing.T) {
	err := &failure.ServerError{Store: "pool", Server: "192.0.2.1:11211", Err: io.EOF}
	assert.EqualError(t, err, "pool: server 192.0.2.1:11211: EOF")
	assert.ErrorIs(t, err, io.EOF)
	lost := &failure.LostAnswerError{Err: memcache.ErrNotStored}
	assert.EqualError(t, lost, "memcache: item not stored, or done already: an answer was lost")
	assert.ErrorIs(t, lost, memcache.ErrNotStored)
}
