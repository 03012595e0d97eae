package throttler_test

import (
	"encoding/binary"
	"strings"
	"testing"
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
	for i := 1; i < len(whole); i++ {
		_, err := th.Redeem(whole[:i])
		require.ErrorContains(t, err, "not a receipt")
	}
	// A receipt of one hit of a window of 10 in a minute.
	hit := func(key string, cost byte) string {
		b := append([]byte{1, 0, 1}, binary.AppendUvarint(nil, uint64(len(key)))...)
		b = append(append(b, key...), 1, 'c', 0, 20)
		b = binary.AppendVarint(b, int64(time.Minute))
		return string(append(b, 2, 1, cost)) + strings.Repeat("\x00", 6)
	}
	longest := strings.Repeat("k", 249)
	for _, key := range []string{"a#b#c", longest} {
		_, err := th.Redeem([]byte(hit(key, 2)))
		require.NoError(t, err)
	}
	one := hit("a#b#c", 2)
	for _, garbage := range []string{
		"\x00", "\x00" + string(whole[1:]), "\x02" + string(whole[1:]), "\x01", "\x01\x00", "\x01\x00\x00", "\x01\x04" + string(whole[2:]),
		hit("a#b c", 2), hit("a#b\r\nc", 2), hit("", 2), hit(longest+"k", 2), hit("a#b#c", 0), hit("a#b#c", 1), hit("a#b#c", 4),
		"\x01\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x", string(whole) + "\x00",
		one[:len(one)-6] + "\x08" + strings.Repeat("\x00", 5), // of no algorithm
	} {
		_, err := th.Redeem([]byte(garbage))
		require.ErrorContains(t, err, "not a receipt", "%q", garbage)
	}
}

func FuzzReceipt(f *testing.F) {
	th := throttler.New(memstore.New())
	rule := receiptRule(20)
	rule.Either = append(rule.Either, inFlight(5, time.Minute), calendar(100, throttler.Period{Unit: throttler.Month, Location: time.FixedZone("x", 60)}))
	rule.Either[4].Name = "calendar"
	d, err := th.Authorize(f.Context(), rule)
	require.NoError(f, err)
	f.Add(d.Receipt())
	settled, err := th.Settle(f.Context(), d, map[string]int{"window": 30, "bucket": 30, "calendar": 200, "hashed": 0})
	require.NoError(f, err)
	f.Add(settled.Receipt())
	f.Fuzz(func(t *testing.T, receipt []byte) {
		th := throttler.New(memstore.New())
		d, err := th.Redeem(receipt)
		if err != nil {
			require.ErrorContains(t, err, "not a receipt")
			return
		}
		again, err := th.Redeem(d.Receipt())
		require.NoError(t, err)
		require.Equal(t, d.Receipt(), again.Receipt())
		for _, n := range []int{1, 100, 0} {
			for _, name := range []string{"window", "bucket", "hashed", "c", "calendar"} {
				_, _ = th.Settle(t.Context(), d, map[string]int{name: n}) // must not panic
			}
		}
		require.NoError(t, th.Renew(t.Context(), throttler.Decision{}))
		require.NoError(t, th.Cancel(t.Context(), d))
	})
}
