package throttler_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/memcachedtest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// olderRelease is the last commit of the release that knows records of version 1
// only.
const olderRelease = "4759be2"

// A fleet is a process of the older release and this one, on one server.
type fleet struct {
	t     *testing.T
	newer *throttler.Throttler
	in    *json.Encoder // of the older
	out   *json.Decoder
}

// olderAnswer is what the older process answers, see testdata/caller.
type olderAnswer struct {
	Decisions []throttler.Decision
	Failed    int
}

// buildOlder builds testdata/caller with the older release, which it takes out of
// the history of the repository.
func buildOlder(t *testing.T) (path string) {
	dir := t.TempDir()
	run := func(script string) error {
		command := exec.Command("sh", "-ec", script)
		command.Env = append(os.Environ(), "GOWORK=off", "OLDER="+dir, "RELEASE="+olderRelease)
		command.Stderr = os.Stderr
		return command.Run()
	}
	err := run(`git cat-file -e "$RELEASE^{commit}" 2>/dev/null; git -C "$(git rev-parse --show-toplevel)" archive "$RELEASE" -o "$OLDER/src.tar"`)
	if err != nil {
		skiptest.Missing(t, fmt.Sprintf("no history with the older release %s: fetch all of it, by git fetch --unshallow", olderRelease))
	}
	require.NoError(t, run(`mkdir "$OLDER/caller"; tar -xf "$OLDER/src.tar" -C "$OLDER"
		cp testdata/caller/main.go "$OLDER/caller/"; cd "$OLDER"; go build -o older ./caller`))
	return filepath.Join(dir, "older")
}

// newFleet starts the older release at path on the server at addr.
func newFleet(t *testing.T, path, addr string) *fleet {
	command := exec.Command(path, addr)
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	require.NoError(t, err)
	stdout, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		stdin.Close()
		assert.NoError(t, command.Wait())
	})
	newer := throttler.New(clientOf(t, addr))
	newer.QueueTimeout = time.Minute // for a busy machine
	return &fleet{t: t, newer: newer, in: json.NewEncoder(stdin), out: json.NewDecoder(stdout)}
}

// older has the older release make so many calls of rule at once, or cancel those
// of its decisions.
func (f *fleet) older(rule throttler.Rule, calls int, cancel ...int) []throttler.Decision {
	require.NoError(f.t, f.in.Encode(map[string]any{"Rule": rule, "Calls": calls, "Cancel": cancel}))
	var a olderAnswer
	require.NoError(f.t, f.out.Decode(&a))
	require.Zero(f.t, a.Failed)
	require.Len(f.t, a.Decisions, calls)
	return a.Decisions
}

// call makes a call with this release.
func (f *fleet) call(rule throttler.Rule) throttler.Decision {
	d, err := f.newer.Authorize(context.Background(), rule)
	require.NoError(f.t, err)
	require.NoError(f.t, d.Err)
	return d
}

// A rolling deployment: half of the processes run the older release.
func TestOlderReleaseBesideThisOneStaysExact(t *testing.T) {
	server := memcachedtest.Process(t)
	path := buildOlder(t)
	for name, test := range map[string]func(*fleet){
		"many calls at once":                  (*fleet).manyCallsAtOnce,
		"bans hold for both":                  (*fleet).bansHoldForBoth,
		"bans with hits beside them":          (*fleet).bansWithHits,
		"hits of a bucket given back by both": (*fleet).bucketsGivenBack,
		"windows in different sizes":          (*fleet).windowsInTurn,
	} {
		t.Run(name, func(t *testing.T) { test(newFleet(t, path, server.Addr)) })
	}
}

// rule is a rule with values of that test only.
func (f *fleet) rule(conditions ...throttler.Condition) throttler.Rule {
	for i := range conditions {
		conditions[i].Value = f.t.Name()
	}
	return either(conditions...)
}

func (f *fleet) manyCallsAtOnce() {
	eachOldAlgorithm(f.t, 100, func(t *testing.T, c throttler.Condition) {
		rule := f.rule(c)
		rule.Either[0].Value = t.Name()
		var wg sync.WaitGroup
		var mu sync.Mutex
		authorized := 0
		for range 100 {
			wg.Go(func() {
				d, err := f.newer.Authorize(context.Background(), rule)
				assert.NoError(t, err)
				mu.Lock()
				defer mu.Unlock()
				authorized += int(d.Status)
			})
		}
		for _, d := range f.older(rule, 100) {
			mu.Lock()
			authorized += int(d.Status)
			mu.Unlock()
		}
		wg.Wait()
		require.Equal(t, 100, authorized)
	})
}

func (f *fleet) bansHoldForBoth() {
	rule := f.rule(condition("set by the newer", 1, time.Hour))
	rule.Lockout, rule.LockoutGrowth = time.Hour, 2
	f.call(rule)
	require.True(f.t, f.call(rule).Outcomes[0].Banned)
	require.True(f.t, f.older(rule, 1)[0].Outcomes[0].Banned)

	rule.Either[0].Name = "set by the older"
	f.older(rule, 1)
	require.True(f.t, f.older(rule, 1)[0].Outcomes[0].Banned)
	require.True(f.t, f.call(rule).Outcomes[0].Banned)
}

// What a ban keeps of its hits is hidden from the older release: it finds a ban,
// and nothing that counts when that ends.
func (f *fleet) bansWithHits() {
	eachOldAlgorithm(f.t, 2, func(t *testing.T, c throttler.Condition) {
		rule := f.rule(c, condition("other", 100, time.Hour))
		rule.CountAuthorizedOnly, rule.Lockout, rule.LockoutGrowth = true, time.Second, 1
		var banned throttler.Decision
		for try, late := 0, true; late; try++ { // a busy machine may let the ban end
			require.Less(t, try, 30)
			rule.Either[0].Value = fmt.Sprint(t.Name(), try)
			f.call(rule)
			f.call(rule)
			begun := time.Now()
			require.True(t, f.call(rule).Outcomes[0].Banned)
			banned = f.older(rule, 1)[0]
			late = time.Since(begun) >= rule.Lockout
		}
		require.True(t, banned.Outcomes[0].Banned)
		time.Sleep(banned.RetryAfter)
		require.Equal(t, 1, f.older(rule, 1)[0].Outcomes[0].Remaining, "counting starts anew")
	})
}

// Both count and cancel in random order. What stays counted never exceeds Max.
func (f *fleet) bucketsGivenBack() {
	const max = 40
	c := condition("bucket", max, 1000*time.Hour)
	c.Algorithm = throttler.LeakyBucket
	rule := f.rule(c)
	random := rand.New(rand.NewPCG(1, 2))
	var newer []throttler.Decision
	var older []int // those that are not cancelled, of …
	made, stay := 0, 0
	for range 40 {
		for range random.IntN(6) {
			if d := f.call(rule); d.Status == throttler.Authorized {
				newer = append(newer, d)
			}
			if f.older(rule, 1)[0].Status == throttler.Authorized {
				older = append(older, made)
			}
			made++
		}
		for range random.IntN(6) {
			if len(newer) > 0 {
				i := random.IntN(len(newer))
				require.NoError(f.t, f.newer.Cancel(context.Background(), newer[i]))
				newer = append(newer[:i], newer[i+1:]...)
			}
			if len(older) > 0 {
				i := random.IntN(len(older))
				f.older(rule, 0, older[i])
				older = append(older[:i], older[i+1:]...)
			}
		}
		stay = len(newer) + len(older)
		require.LessOrEqual(f.t, stay, max)
	}
	for f.call(rule).Status == throttler.Authorized {
		stay++
	}
	require.LessOrEqual(f.t, stay, max)
	require.Greater(f.t, stay, max/2, "most was given back")
}

// Hits of both releases stand in one list.
func (f *fleet) windowsInTurn() {
	for _, max := range []int{5, 32 + 1, 200} {
		rule := f.rule(condition(fmt.Sprintf("window of %d", max), max, time.Hour))
		for i := range max {
			var d throttler.Decision
			if i%2 == 0 {
				d = f.call(rule)
			} else {
				d = f.older(rule, 1)[0]
			}
			require.Equal(f.t, max-1-i, d.Outcomes[0].Remaining)
		}
		require.Equal(f.t, throttler.Blocked, f.call(rule).Status)
		require.Equal(f.t, throttler.Blocked, f.older(rule, 1)[0].Status)
	}
}

func TestRecordOfALaterReleaseIsLeftAlone(t *testing.T) {
	ctx, client := context.Background(), memstore.New()
	rule := either(condition("c", 1, time.Hour))
	rule.Lockout = time.Hour
	later := []byte{3, 2, 7, 1, 8}
	require.NoError(t, client.Add(&memcache.Item{Key: "test#c#v", Value: later, Expiration: 60}))
	th := throttler.New(client)
	for range 3 {
		d, err := th.Authorize(ctx, rule)
		require.NoError(t, err)
		require.Equal(t, throttler.Authorized, d.Status)
		require.ErrorIs(t, d.Err, throttler.ErrNewerRecord)
		require.ErrorIs(t, d.Outcomes[0].Err, throttler.ErrNewerRecord)
		require.NoError(t, th.Cancel(ctx, d))
	}
	item, err := client.Get("test#c#v")
	require.NoError(t, err)
	require.Equal(t, later, item.Value)

	th = throttler.New(client)
	th.Fallback = memstore.New()
	require.Equal(t, throttler.Authorized, authorize(t, th, rule).Status)
	d := authorize(t, th, rule)
	require.Equal(t, throttler.Blocked, d.Status, "the fallback decides")
	require.ErrorIs(t, d.Err, throttler.ErrNewerRecord)
	require.NoError(t, th.Reset(ctx, rule))
	require.NoError(t, peek(t, th, rule).Err)
}
