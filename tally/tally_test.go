package tally_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/tally"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// observed returns a Throttler on client and the Tally that observes it.
func observed(client throttler.Client) (*throttler.Throttler, *tally.Tally) {
	limits, counts := throttler.New(client), tally.New()
	limits.Observe = counts.Observe
	return limits, counts
}

func authorize(t *testing.T, limits *throttler.Throttler, rule throttler.Rule, times int) {
	t.Helper()
	for range times {
		_, err := limits.Authorize(t.Context(), rule)
		require.NoError(t, err)
	}
}

func login(address, name string) []throttler.Condition {
	return []throttler.Condition{
		{Name: "address", Value: address, Max: 5, TTL: time.Minute},
		{Name: "name", Value: name, Max: 2, TTL: time.Minute, Lockout: time.Hour},
	}
}

// onlyRule returns the counts of the only rule in a snapshot.
func onlyRule(t *testing.T, counts *tally.Tally) RuleCounts {
	t.Helper()
	s := snapshotOf(counts)
	require.Len(t, s.Rules, 1)
	require.Zero(t, s.Uncounted)
	return s.Rules[0]
}

// counted returns the counters of c that are not 0.
func counted(t *testing.T, c Counts) string {
	t.Helper()
	text, err := json.Marshal(c)
	require.NoError(t, err)
	all := make(map[string]uint64)
	require.NoError(t, json.Unmarshal(text, &all))
	maps.DeleteFunc(all, func(_ string, n uint64) bool { return n == 0 })
	return strings.TrimPrefix(fmt.Sprint(all), "map")
}

func TestWhatBecomesOfCallsIsCounted(t *testing.T) {
	both := login("192.0.2.1", "alice")
	for name, row := range map[string]struct {
		rule     throttler.Rule
		client   throttler.Client
		fallback throttler.Client
		calls    int
		want     string
		of       []string // conditions, with the values that they have blocked
	}{
		// address takes hits 1 to 5, name 1 and 2, and is banned from 3 on.
		"either: what each condition blocked": {throttler.Rule{Either: both}, memstore.New(), nil, 8, "[authorized:2 blocked:6 calls:8]", []string{
			"address [authorized:5 blocked:3 calls:8] [{192.0.2.1 3 0}]", "name [authorized:2 banned:6 blocked:6 calls:8] [{alice 6 0}]"}},
		"all: what was overruled": {throttler.Rule{All: both}, memstore.New(), nil, 8, "[authorized:5 blocked:3 calls:8]", []string{
			"address [authorized:5 blocked:3 calls:8] [{192.0.2.1 3 0}]", "name [authorized:2 banned:6 blocked:3 calls:8 overruled:3] [{alice 3 0}]"}},
		"first: what was asked": {throttler.Rule{First: both}, memstore.New(), nil, 8, "[authorized:7 blocked:1 calls:8]", []string{
			"address [authorized:5 blocked:1 calls:8 overruled:2] [{192.0.2.1 1 0}]", "name [authorized:2 banned:1 blocked:1 calls:3] [{alice 1 0}]"}},
		"shadow: what would block": {throttler.Rule{Either: both, Shadow: true}, memstore.New(), nil, 8, "[authorized:2 calls:8 would_block:6]", []string{
			"address [authorized:5 calls:8 would_block:3] [{192.0.2.1 3 0}]", "name [authorized:2 banned:6 calls:8 would_block:6] [{alice 6 0}]"}},
		"a failure of the backend": {throttler.Rule{Either: both}, broken{memstore.New()}, nil, 3, "[authorized:3 calls:3 failed:3]", []string{
			"address [authorized:3 calls:3 failed:3] []", "name [authorized:3 calls:3 failed:3] []"}},
		"a fallback decides what failed": {throttler.Rule{Either: both[1:]}, broken{memstore.New()}, memstore.New(), 3, "[authorized:2 blocked:1 calls:3 failed:3]", []string{
			"name [authorized:2 banned:1 blocked:1 calls:3 failed:3] [{alice 1 0}]"}},
	} {
		t.Run(name, func(t *testing.T) {
			limits, counts := observed(row.client)
			limits.Fallback, row.rule.Identifier = row.fallback, "login"
			authorize(t, limits, row.rule, row.calls)
			r := onlyRule(t, counts)
			assert.Equal(t, "login", r.Identifier)
			assert.Equal(t, row.want, counted(t, r.Counts))
			var of []string
			for _, c := range r.Conditions {
				assert.Zero(t, c.Unlisted)
				of = append(of, fmt.Sprint(c.Name, " ", counted(t, c.Counts), " ", c.Values))
			}
			assert.Equal(t, row.of, of)
		})
	}
}

// broken is a backend that answers every read with an error.
type broken struct{ throttler.Client }

var errBroken = errors.New("connection refused, says 192.0.2.99")

func (broken) Get(string) (*memcache.Item, error) { return nil, errBroken }
func (broken) GetMulti([]string) (map[string]*memcache.Item, error) {
	return nil, errBroken
}

// rival is a backend in which another process is faster to store the first hit.
type rival struct {
	throttler.Client
	first func()
}

func (r *rival) Add(item *memcache.Item) error {
	if first := r.first; first != nil {
		r.first = nil
		first()
	}
	return r.Client.Add(item)
}

func TestLostRacesAreCounted(t *testing.T) {
	rule := throttler.Rule{Identifier: "login", Either: []throttler.Condition{{Name: "name", Value: "alice", Max: 5, TTL: time.Minute}}}
	client := &rival{Client: memstore.New()}
	client.first = func() { authorize(t, throttler.New(client.Client), rule, 1) }
	limits, counts := observed(client)
	authorize(t, limits, rule, 3)
	r := onlyRule(t, counts)
	assert.EqualValues(t, 1, r.LostRaces)
	assert.EqualValues(t, 1, r.Conditions[0].LostRaces)
	assert.EqualValues(t, 3, r.Authorized)
}

func TestAWaitIsOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits, counts := observed(memstore.New())
		rule := throttler.Rule{Identifier: "mail", Either: []throttler.Condition{{Name: "to", Value: "alice", Max: 1, TTL: time.Minute}}}
		for range 3 {
			_, err := limits.Wait(t.Context(), rule)
			require.NoError(t, err)
		}
		r := onlyRule(t, counts)
		assert.EqualValues(t, 3, r.Calls)
		assert.EqualValues(t, 3, r.Authorized)
	})
}

func TestWhatFailsAndBlocksIsCountedAsBoth(t *testing.T) {
	counts := tally.New()
	counts.Observe(t.Context(), throttler.Rule{Identifier: "r", Either: []throttler.Condition{{Name: "c", Value: "v"}}},
		throttler.Decision{WouldBlock: true, Err: errBroken, Outcomes: []throttler.Outcome{{Name: "c", Blocked: true, Err: errBroken}}})
	assert.Equal(t, RuleCounts{
		Identifier: "r", Counts: Counts{Calls: 1, Blocked: 1, Failed: 1},
		Conditions: []ConditionCounts{{
			Name: "c", Counts: Counts{Calls: 1, Blocked: 1, Failed: 1}, Values: []ValueCount{{Value: "v", Count: 1}},
		}},
	}, onlyRule(t, counts))
}

func TestPeekAndInvalidRulesAreNotCounted(t *testing.T) {
	limits, counts := observed(memstore.New())
	_, err := limits.Peek(t.Context(), throttler.Rule{Identifier: "login", Either: login("192.0.2.1", "alice")})
	require.NoError(t, err)
	_, err = limits.Authorize(t.Context(), throttler.Rule{})
	require.ErrorIs(t, err, throttler.ErrInvalidRule)
	s := snapshotOf(counts)
	assert.Empty(t, s.Rules)
	assert.Zero(t, s.Uncounted)
}

func TestRulesAreSortedAndConditionsAsFirstSeen(t *testing.T) {
	counts := tally.New()
	for _, rule := range []throttler.Rule{
		{Identifier: "z", Either: []throttler.Condition{{Name: "b"}, {Name: "a"}}},
		{Identifier: "y", Either: []throttler.Condition{{Name: "a"}}},
		{Identifier: "z", Either: []throttler.Condition{{Name: "a"}, {Name: "c"}, {Name: "b"}}},
	} {
		observe(counts, rule, true)
	}
	s := snapshotOf(counts)
	require.Len(t, s.Rules, 2)
	assert.Equal(t, "y", s.Rules[0].Identifier)
	assert.Equal(t, "z", s.Rules[1].Identifier)
	var names []string
	for _, c := range s.Rules[1].Conditions {
		names = append(names, fmt.Sprint(c.Name, c.Calls))
	}
	assert.Equal(t, []string{"b2", "a2", "c1"}, names)
}

// observe hands counts a decision in which all conditions of a rule of Either
// have room, or none has.
func observe(counts *tally.Tally, rule throttler.Rule, room bool) {
	d := throttler.Decision{WouldBlock: !room}
	if room {
		d.Status = throttler.Authorized
	}
	for _, c := range rule.Either {
		d.Outcomes = append(d.Outcomes, throttler.Outcome{Name: c.Name, Blocked: !room})
	}
	counts.Observe(context.Background(), rule, d)
}

// block hands counts a decision in which the one condition of a rule blocks.
func block(counts *tally.Tally, value string) {
	observe(counts, throttler.Rule{Identifier: "r", Either: []throttler.Condition{{Name: "c", Value: value}}}, false)
}

// values returns the most blocked values of what block blocked.
func values(t *testing.T, counts *tally.Tally) []ValueCount {
	t.Helper()
	r := onlyRule(t, counts)
	require.Len(t, r.Conditions, 1)
	return r.Conditions[0].Values
}

func TestAnOddDecisionIsCountedAsFarAsItGoes(t *testing.T) {
	counts := tally.New()
	rule := throttler.Rule{Identifier: "r", Either: []throttler.Condition{{Name: "c", Value: "v"}}}
	counts.Observe(t.Context(), rule, throttler.Decision{})
	counts.Observe(t.Context(), rule, throttler.Decision{Outcomes: []throttler.Outcome{{Name: "c"}, {Name: "more", Blocked: true}}})
	assert.Equal(t, RuleCounts{
		Identifier: "r", Counts: Counts{Calls: 2, Blocked: 2},
		Conditions: []ConditionCounts{
			{Name: "c", Counts: Counts{Calls: 1, Authorized: 1}, Values: []ValueCount{}},
			{Name: "more", Counts: Counts{Calls: 1, Blocked: 1}, Values: []ValueCount{}},
		},
	}, onlyRule(t, counts))
}

func TestNamesAreBounded(t *testing.T) {
	counts := tally.New()
	counts.MaxNames = 4
	for i := range 1000 {
		observe(counts, throttler.Rule{Identifier: strconv.Itoa(i), Either: []throttler.Condition{{Name: "a"}, {Name: "b"}}}, true)
	}
	s := snapshotOf(counts)
	require.Len(t, s.Rules, 2)
	assert.Len(t, s.Rules[0].Conditions, 2, "a rule and its two conditions")
	assert.Empty(t, s.Rules[1].Conditions, "a rule without room for its conditions")
	assert.EqualValues(t, 999, s.Uncounted)
	// What is known is still counted.
	observe(counts, throttler.Rule{Identifier: "0", Either: []throttler.Condition{{Name: "a"}, {Name: "b"}}}, true)
	assert.EqualValues(t, 2, snapshotOf(counts).Rules[0].Conditions[1].Calls)
}

func TestNamesAreBoundedByDefault(t *testing.T) {
	counts := tally.New()
	for i := range 1000 {
		observe(counts, throttler.Rule{Identifier: strconv.Itoa(i), Either: []throttler.Condition{{Name: "a"}}}, true)
	}
	s := snapshotOf(counts)
	assert.Len(t, s.Rules, 256/2)
	assert.EqualValues(t, 1000-256/2, s.Uncounted)
}

func TestLongNamesAreNotKept(t *testing.T) {
	counts := tally.New()
	long := strings.Repeat("x", 257)
	observe(counts, throttler.Rule{Identifier: long, Either: []throttler.Condition{{Name: "a"}}}, true)
	assert.Empty(t, snapshotOf(counts).Rules)
	observe(counts, throttler.Rule{Identifier: long[:256], Either: []throttler.Condition{{Name: long}, {Name: "a"}}}, true)
	s := snapshotOf(counts)
	assert.EqualValues(t, 2, s.Uncounted)
	require.Len(t, s.Rules, 1)
	require.Len(t, s.Rules[0].Conditions, 1)
	assert.Equal(t, "a", s.Rules[0].Conditions[0].Name)
}

func TestHostileValuesAreKeptApartAndQuoted(t *testing.T) {
	counts := tally.New()
	long := strings.Repeat("x", 128)
	for _, value := range hostile {
		block(counts, value)
	}
	got := make(map[string]bool)
	for _, v := range values(t, counts) {
		assert.LessOrEqual(t, len(v.Value), 4*170+2)
		assert.EqualValues(t, 1, v.Count, "%q", v.Value)
		got[v.Value] = true
	}
	assert.Len(t, got, len(hostile))
	assert.Contains(t, got, "")
	assert.Contains(t, got, "plain ünïcode")
	assert.Contains(t, got, `"\xff\xfe"`)
	assert.Contains(t, got, `"\"\\xff\\xfe\""`)
	assert.Contains(t, got, `"\u202egnp.exe"`)
	assert.Contains(t, got, `" blank"`)
	assert.Contains(t, got, `"line\r\nset x 0 0 1\r\n"`)
	assert.Contains(t, got, long)
	hash := sha256.Sum256([]byte(long + "y"))
	assert.Contains(t, got, long[:96]+"...sha256:"+hex.EncodeToString(hash[:]))
}

// hostile are values that could harm a person or program that shows them.
var hostile = []string{
	"",
	"plain ünïcode",
	"\xff\xfe",
	`"\xff\xfe"`,
	"\u202egnp.exe",
	" blank",
	"blank",
	"line\r\nset x 0 0 1\r\n",
	"\x00",
	"\x1b[2J",
	`<script>alert(1)</script>`,
	`"><img src=x onerror=alert(1)>`,
	`</style></table><h1>owned`,
	`{{.Since}}`,
	`javascript:alert(1)`,
	strings.Repeat("x", 128),
	strings.Repeat("x", 129),
	strings.Repeat("x", 128) + "y",
	strings.Repeat("\xff", 10_000),
	strings.Repeat("<", 10_000),
}

func TestHashedValuesAreNotInClearText(t *testing.T) {
	counts := tally.New()
	counts.HashKey = []byte("key")
	block(counts, "alice")
	block(counts, "bob")
	block(counts, "alice")
	mac := func(value string) string {
		h := hmac.New(sha256.New, []byte("key"))
		h.Write([]byte(value))
		return hex.EncodeToString(h.Sum(nil))[:32]
	}
	assert.Equal(t, []ValueCount{{Value: mac("alice"), Count: 2}, {Value: mac("bob"), Count: 1}}, values(t, counts))
}

func TestAnEmptyHashKeyStillHashes(t *testing.T) {
	counts := tally.New()
	counts.HashKey = []byte{}
	block(counts, "alice")
	assert.NotEqual(t, "alice", values(t, counts)[0].Value)
}

func TestNoValuesAreKeptIfNoneAreWanted(t *testing.T) {
	counts := tally.New()
	counts.MaxValues = -1
	block(counts, "alice")
	c := onlyRule(t, counts).Conditions[0]
	assert.EqualValues(t, 1, c.Blocked)
	assert.EqualValues(t, 1, c.Unlisted)
	assert.Empty(t, c.Values)
}

// A value is often part of something large, a request's buffer say, that must not
// be kept alive or be looked at again.
func TestNothingOfTheCallersIsKept(t *testing.T) {
	counts := tally.New()
	buffer := []byte("alice, and all the rest of the request")
	block(counts, unsafe.String(&buffer[0], len("alice")))
	clear(buffer)
	assert.Equal(t, []ValueCount{{Value: "alice", Count: 1}}, values(t, counts))
}

func TestResetBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := tally.New()
		begin := time.Now()
		block(counts, "alice")
		time.Sleep(time.Hour)
		s := snapshotOf(counts)
		assert.True(t, s.Since.Equal(begin))
		assert.Equal(t, time.Hour, s.At.Sub(s.Since))
		counts.Reset()
		assert.Len(t, s.Rules, 1, "a snapshot that was taken before")
		s = snapshotOf(counts)
		assert.Empty(t, s.Rules)
		assert.Equal(t, time.Hour, s.Since.Sub(begin))
		block(counts, "bob")
		assert.Equal(t, []ValueCount{{Value: "bob", Count: 1}}, values(t, counts))
	})
}

func TestConcurrentCallsAreAllCounted(t *testing.T) {
	const workers, each = 8, 2000
	counts := tally.New()
	counts.MaxValues = 10
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for i := range each {
				observe(counts, throttler.Rule{Identifier: "r" + strconv.Itoa(i%5), Either: []throttler.Condition{
					{Name: "a", Value: strconv.Itoa(i % 100)}, {Name: "b", Value: strconv.Itoa(w)},
				}}, i%2 == 0)
				if i%500 == 0 {
					snapshotOf(counts)
				}
			}
		})
	}
	group.Wait()
	s := snapshotOf(counts)
	require.Len(t, s.Rules, 5)
	for _, r := range s.Rules {
		assert.EqualValues(t, workers*each/5/2, r.Authorized)
		assert.EqualValues(t, workers*each/5/2, r.Blocked)
		require.Len(t, r.Conditions, 2)
		for _, c := range r.Conditions {
			assert.EqualValues(t, r.Blocked, c.Blocked)
			var sum uint64
			for _, v := range c.Values {
				sum += v.Count
			}
			assert.Equal(t, c.Blocked, sum)
		}
	}
}

func TestConcurrentResetsLoseNoRaceAndKeepTheBound(t *testing.T) {
	counts := tally.New()
	counts.MaxNames = 7
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			for i := range 2000 {
				observe(counts, throttler.Rule{Identifier: strconv.Itoa(i % 50), Either: []throttler.Condition{{Name: "a", Value: "v"}}}, false)
				if w == 0 && i%100 == 0 {
					counts.Reset()
				}
				if i%100 == 50 {
					names := 0
					for _, r := range snapshotOf(counts).Rules {
						names += 1 + len(r.Conditions)
					}
					assert.LessOrEqual(t, names, 7)
				}
			}
		})
	}
	group.Wait()
}

func TestAuthorizedCallsDoNotAllocate(t *testing.T) {
	counts := tally.New()
	rule := throttler.Rule{Identifier: "login", Either: login("192.0.2.1", "alice")}
	d := throttler.Decision{Status: throttler.Authorized, Outcomes: []throttler.Outcome{{Name: "address"}, {Name: "name"}}}
	ctx := t.Context()
	assert.Zero(t, testing.AllocsPerRun(100, func() { counts.Observe(ctx, rule, d) }))
	d = throttler.Decision{Outcomes: []throttler.Outcome{{Name: "address"}, {Name: "name", Blocked: true}}}
	assert.Zero(t, testing.AllocsPerRun(100, func() { counts.Observe(ctx, rule, d) }), "a value that is known")
}
