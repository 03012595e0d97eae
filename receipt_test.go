package throttler_test

import (
	"encoding/binary"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
)

// receiptRule has a window, a bucket, and a value that is stored under a hash.
func receiptRule(max int) throttler.Rule {
	return throttler.Rule{Identifier: "receipt", Either: []throttler.Condition{
		{Name: "window", Value: "w", Max: max, TTL: time.Hour, Cost: 2},
		{Name: "bucket", Value: "b", Max: max, TTL: time.Hour, Algorithm: throttler.LeakyBucket, Cost: 3},
		{Name: "hashed", Value: strings.Repeat("x\n", 200), Max: max, TTL: time.Hour},
	}}
}

// room returns what remains of each condition before the call that looks.
func room(t *testing.T, th *throttler.Throttler, rule throttler.Rule) []int {
	t.Helper()
	left := remaining(peek(t, th, rule))
	for i := range left {
		left[i] += max(rule.Either[i].Cost, 1)
	}
	return left
}

func TestAnotherProcessTakesBackWhatAReceiptSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		one, other := throttler.New(store), throttler.New(store)
		rule := receiptRule(20)
		first := authorize(t, one, rule)
		time.Sleep(time.Second)
		authorize(t, other, rule)
		require.Equal(t, []int{16, 14, 18}, room(t, one, rule))

		redeemed, err := other.Redeem(first.Receipt())
		require.NoError(t, err)
		part := rule
		part.Either = rule.Either[1:2]
		require.NoError(t, other.CancelOnly(t.Context(), redeemed, part))
		require.Equal(t, []int{16, 17, 18}, room(t, one, rule))
		for range 2 {
			require.NoError(t, other.Cancel(t.Context(), redeemed))
			require.Equal(t, []int{18, 17, 19}, room(t, one, rule), "each hit once")
		}
		require.Nil(t, redeemed.Receipt(), "nothing is left")
	})
}

func TestAReceiptIsWrittenAsItWasRead(t *testing.T) {
	th := throttler.New(memstore.New())
	d := authorize(t, th, receiptRule(50))
	redeemed, err := th.Redeem(d.Receipt())
	require.NoError(t, err)
	require.Equal(t, d.Receipt(), redeemed.Receipt())
}

func TestACallThatCountedNothingHasNoReceipt(t *testing.T) {
	th := throttler.New(memstore.New())
	rule := receiptRule(3)
	rule.CountAuthorizedOnly = true
	authorize(t, th, rule)
	for _, d := range []throttler.Decision{authorize(t, th, rule), peek(t, th, rule)} {
		require.Equal(t, throttler.Blocked, d.Status)
		require.Equal(t, []int{1, 0, 2}, remaining(d))
		require.Nil(t, d.Receipt())
	}
	d, err := th.Redeem(nil)
	require.NoError(t, err)
	require.NoError(t, th.Cancel(t.Context(), d))
	require.Equal(t, []int{1, 0, 2}, remaining(peek(t, th, rule)))
}

// What a fallback has counted is in one process: another must not look for it on
// the servers.
func TestAReceiptLeavesOutWhatAFallbackCounted(t *testing.T) {
	client := newFaulty()
	client.before = func(string, ...string) error { return errDown }
	th := throttler.New(client)
	th.Fallback = memstore.New()
	d := authorize(t, th, receiptRule(20))
	require.Error(t, d.Err)
	require.Nil(t, d.Receipt())
}

func TestBytesThatAreNoReceiptAreRefused(t *testing.T) {
	th := throttler.New(memstore.New())
	d := authorize(t, th, receiptRule(20))
	whole := d.Receipt()
	ends := 0
	for i := 1; i < len(whole); i++ {
		cut, err := th.Redeem(whole[:i])
		if err == nil { // between two hits
			require.NotNil(t, cut.Receipt())
			ends++
			continue
		}
		require.ErrorIs(t, err, throttler.ErrInvalidReceipt)
	}
	require.Equal(t, 2, ends)
	hit := func(key string, cost byte) string {
		return "\x01" + string(binary.AppendUvarint(nil, uint64(len(key)))) + key + string(cost) + strings.Repeat("\x00", 8)
	}
	longest := strings.Repeat("k", 249)
	for _, key := range []string{"a#b#c", longest} {
		_, err := th.Redeem([]byte(hit(key, 2)))
		require.NoError(t, err)
	}
	for _, garbage := range []string{
		"\x00", "\x02" + string(whole[1:]), "\x01", hit("a#b c", 2), hit("a#b\r\nc", 2), hit("", 2), hit(longest+"k", 2), hit("a#b#c", 0), hit("a#b#c", 1),
		"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x", string(whole) + "\x00",
		"\x01\x05a#b#c\x02" + strings.Repeat("\x00", 7) + "\x80\x80\x08", // more than the number of a share holds
	} {
		_, err := th.Redeem([]byte(garbage))
		require.ErrorIs(t, err, throttler.ErrInvalidReceipt, "%q", garbage)
	}
}
