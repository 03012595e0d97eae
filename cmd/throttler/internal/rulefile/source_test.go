package rulefile_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// named returns a file with one rule.
func named(name string) string {
	return "rules: [{name: " + name + ", either: [{name: x, value: x, max: 1, per: 1s}]}]\n"
}

// A watched file, and what its Source tells.
type watched struct {
	t      *testing.T
	path   string
	source *rulefile.Source
	hangup chan os.Signal

	mu   sync.Mutex // guards what follows
	news []error
}

func watch(t *testing.T) *watched {
	w := &watched{t: t, path: filepath.Join(t.TempDir(), "rules.yaml"), hangup: make(chan os.Signal, 1)}
	w.write(named("first"))
	var err error
	w.source, err = rulefile.Open(w.path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.source.Watch(ctx, w.hangup, func(_ *rulefile.File, err error) { w.tell(err) })
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return w
}

func (w *watched) tell(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.news = append(w.news, err)
}

// told returns what the Source has told so far.
func (w *watched) told() []error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.news)
}

func (w *watched) write(text string) {
	require.NoError(w.t, os.WriteFile(w.path, []byte(text), 0o600))
}

// pass lets time pass, and then returns the name of the rule that holds.
func (w *watched) pass(d time.Duration) string {
	time.Sleep(d)
	synctest.Wait()
	return w.source.File().Rules[0].Name
}

func TestAChangeIsReadWhenItHasSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t)
		assert.Equal(t, "first", w.pass(10*time.Second))
		assert.Empty(t, w.told(), "no change, no news")

		w.write(named("second"))
		assert.Equal(t, "first", w.pass(1100*time.Millisecond), "seen, but perhaps half written")
		assert.Equal(t, "second", w.pass(time.Second))
		assert.Equal(t, []error{nil}, w.told())
	})
}

func TestABrokenFileKeepsTheOldRulesAndIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t)
		w.write("rules: 3")
		assert.Equal(t, "first", w.pass(time.Minute))
		require.Len(t, w.told(), 1)
		assert.ErrorContains(t, w.told()[0], "rules.yaml:1:8: int was used where sequence is expected")

		require.NoError(t, os.Remove(w.path))
		assert.Equal(t, "first", w.pass(time.Minute))
		w.write(named("mended"))
		assert.Equal(t, "mended", w.pass(time.Minute))
		require.Len(t, w.told(), 3)
		assert.ErrorIs(t, w.told()[1], os.ErrNotExist, "that it is gone is told once too")
		assert.NoError(t, w.told()[2])
	})
}

func TestAFileThatIsSwappedByALinkIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t)
		other := filepath.Join(t.TempDir(), "other.yaml")
		require.NoError(t, os.WriteFile(other, []byte(named("linked")), 0o600))
		link := w.path + ".new"
		require.NoError(t, os.Symlink(other, link))
		require.NoError(t, os.Rename(link, w.path))
		assert.Equal(t, "linked", w.pass(time.Minute))
	})
}

func TestAHangupReadsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t)
		w.write(named("second"))
		w.hangup <- syscall.SIGHUP
		assert.Equal(t, "second", w.pass(0))
		assert.Equal(t, "second", w.pass(time.Minute))
		assert.Len(t, w.told(), 1, "and not once more")
	})
}

func TestAFileThatIsBrokenFromTheStartIsAnError(t *testing.T) {
	_, err := rulefile.Open(filepath.Join(t.TempDir(), "none.yaml"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestAFileOfLimitsIsReadAgainWhenItChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t)
		plans := filepath.Join(filepath.Dir(w.path), "plans.csv")
		plan := func(text string) int {
			require.NoError(t, os.WriteFile(plans, []byte(text), 0o600))
			w.pass(3 * time.Second)
			c, ok := w.source.File().Limit("mail", "customer", "c-17")
			require.True(t, ok)
			return c.Max
		}
		require.NoError(t, os.WriteFile(plans, []byte("c-17, many\n"), 0o600))
		w.write("rules: [{name: mail, for: {api: true}, either: [{name: customer, value: any, max: 1, per: 1s, limits: {c-1: 5}, limits-file: plans.csv}]}]\n")
		assert.Equal(t, "first", w.pass(3*time.Second), "the new rule file names a bad file")
		w.pass(3 * time.Second)
		require.Len(t, w.told(), 1)

		require.NoError(t, os.WriteFile(plans, []byte("# plans\nc-17, 1000\n\"c,18\", 20\n"), 0o600))
		require.Equal(t, "mail", w.pass(3*time.Second), "mended in that file alone")
		for value, max := range map[string]int{"c-17": 1000, "c,18": 20, "c-1": 5, "other": 1} {
			c, _ := w.source.File().Limit("mail", "customer", value)
			assert.Equal(t, max, c.Max, value)
		}
		assert.Equal(t, 3000, plan("\ufeffc-17,3000\r\n"), "of a spreadsheet")
		assert.Equal(t, 2000, plan("c-17, 2000\n"))
		for text, want := range map[string]string{
			"c-2, 3\nc-17, 0\n": `plans.csv:2:1: the limit of "c-17" is 0, want`, "c-2, 3\nc-17\n": "plans.csv:2:1: wrong number of fields",
			"c-1, 3\n": `plans.csv:1:1: "c-1" has a limit already`, "c-17, x, y\n": "plans.csv:1:1: wrong number", "c-17, 5.5\n": "want a whole number",
			"c-17, 9\n" + strings.Repeat("#\n", 2<<20): "plans.csv is larger than",
		} {
			before := len(w.told())
			assert.Equal(t, 2000, plan(text), "the old limits stay")
			require.Len(t, w.told(), before+1, text)
			assert.ErrorContains(t, w.told()[before], want)
		}
		require.NoError(t, os.Remove(plans))
		w.pass(3 * time.Second)
		assert.ErrorContains(t, w.told()[len(w.told())-1], "no such file")
		assert.Equal(t, 7, plan("c-17, 7\n"))
	})
}
