package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// handed is a message that a notifier has handed over.
type handed struct {
	at      time.Duration // since the test began
	message string
}

// bench is a notifier under test, in time that is held. Its messages are handed to
// the test.
type bench struct {
	*notifier
	dir      string
	handed   []handed
	fail     func(message string) bool
	problems strings.Builder
}

// newBench returns the notifier of a spool, which takes max messages in 10 seconds.
func newBench(t *testing.T, max int) *bench {
	b := &bench{dir: t.TempDir()}
	q, err := openSpool(b.dir)
	require.NoError(t, err)
	start := time.Now()
	b.notifier = &notifier{
		queue:     q,
		throttler: throttler.New(memstore.New()),
		rule: throttler.Rule{Identifier: "notify", Either: []throttler.Condition{
			{Name: "messages", Max: max, TTL: 10 * time.Second},
		}},
		retry:    time.Minute,
		events:   log.New(io.Discard, "", 0),
		problems: log.New(&b.problems, "", 0),
		putOff:   make(map[string]time.Time),
		deliver: func(_ context.Context, _ string, file *os.File) error {
			message, err := io.ReadAll(file)
			if err != nil || b.fail != nil && b.fail(string(message)) {
				return errors.Join(errors.New("no signal"), err)
			}
			b.handed = append(b.handed, handed{time.Since(start), string(message)})
			return nil
		},
	}
	return b
}

// write puts files into the folder, as others do.
func (b *bench) write(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(b.dir, name), []byte("text of "+name), 0o600))
	}
}

// left returns the messages that are in the folder.
func (b *bench) left(t *testing.T) []string {
	t.Helper()
	ids, err := b.queue.list()
	require.NoError(t, err)
	return ids
}

func TestRateIsHeldAndOrderKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3)
		var want []handed
		for i := range 20 {
			name := fmt.Sprintf("%02d", i)
			b.write(t, name)
			want = append(want, handed{time.Duration(i/3) * 10 * time.Second, "text of " + name})
		}
		require.NoError(t, b.runFolder(t.Context(), 0))
		require.Equal(t, want, b.handed)
		require.Empty(t, b.left(t))
	})
}

// down is a client whose server is gone from a time on.
type down struct {
	throttler.Client
	from time.Time
}

var errGone = errors.New("server is gone")

func (d down) Get(key string) (*memcache.Item, error) {
	if time.Now().Before(d.from) {
		return d.Client.Get(key)
	}
	return nil, errGone
}

func TestMessagesKeepTheirDistanceWhenTheServerGoes(t *testing.T) {
	for name, from := range map[string]time.Duration{"before the first": 0, "between the third and the fourth": 7 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				b.rule.Either[0].TTL = 3 * time.Second
				b.throttler = throttler.New(down{memstore.New(), time.Now().Add(from)})
				var want []handed
				for i := range 10 {
					name := fmt.Sprintf("%02d", i)
					b.write(t, name)
					want = append(want, handed{time.Duration(i) * 3 * time.Second, "text of " + name})
				}
				require.NoError(t, b.runFolder(t.Context(), 0))
				require.Equal(t, want, b.handed)
				require.Equal(t, "memcached does not answer, so this process keeps the rate on its own: server is gone\n", b.problems.String())
			})
		})
	}
}

func TestMessageThatFailsIsKeptAndTheOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		b.write(t, "1", "2", "3")
		b.fail = func(message string) bool { return message == "text of 2" }
		require.ErrorContains(t, b.runFolder(t.Context(), 0), "1 messages could not be handed over")
		require.Equal(t, []handed{{0, "text of 1"}, {0, "text of 3"}}, b.handed)
		require.Equal(t, []string{"2"}, b.left(t))
		require.Equal(t, "kept 2: no signal\n", b.problems.String())
	})
}

func TestMessageThatFailsIsTriedAgainLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		b.write(t, "1")
		attempts := 0
		b.fail = func(string) bool { attempts++; return attempts <= 2 }
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.NoError(t, b.runFolder(ctx, time.Second))
		require.Equal(t, []handed{{2 * time.Minute, "text of 1"}}, b.handed)
		require.Equal(t, 3, attempts)
		require.Empty(t, b.left(t))
	})
}

func TestWatchFindsNewFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		time.AfterFunc(7500*time.Millisecond, func() { b.write(t, "late") })
		require.NoError(t, b.runFolder(ctx, time.Second))
		require.Equal(t, []handed{{8 * time.Second, "text of late"}}, b.handed)
	})
}

func TestStopEndsAWaitAtOnceAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.write(t, "1", "2", "3", "4")
		start := time.Now()
		// No deadline, or Wait would give up beforehand.
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(3*time.Second, cancel)
		require.NoError(t, b.runFolder(ctx, 0))
		require.Equal(t, 3*time.Second, time.Since(start))
		require.Equal(t, []string{"3", "4"}, b.left(t))
		require.NoError(t, b.runFolder(t.Context(), 0))
		require.Equal(t, []handed{{0, "text of 1"}, {0, "text of 2"}, {10 * time.Second, "text of 3"}, {10 * time.Second, "text of 4"}}, b.handed)
	})
}

func TestMessageThatIsTakenOutWhileItWaitsUsesUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.write(t, "1", "2", "3")
		time.AfterFunc(5*time.Second, func() { os.Remove(filepath.Join(b.dir, "2")) })
		require.NoError(t, b.runFolder(t.Context(), 0))
		require.Equal(t, []handed{{0, "text of 1"}, {10 * time.Second, "text of 3"}}, b.handed)
	})
}

func TestOnlyFinishedFilesAreMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		b.write(t, ".being-written", "b", "a")
		require.NoError(t, os.Mkdir(filepath.Join(b.dir, "0"), 0o700))
		require.NoError(t, b.runFolder(t.Context(), 0))
		require.Equal(t, []handed{{0, "text of a"}, {0, "text of b"}}, b.handed)
		require.FileExists(t, filepath.Join(b.dir, ".being-written"))
	})
}

func TestLinesAreQueuedAsFastAsTheyCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		r, w := io.Pipe()
		go func() {
			for i := range 5 {
				fmt.Fprintf(w, "%d\n", i)
			}
			time.Sleep(time.Second)
			ids, _ := b.queue.list()
			fmt.Fprintf(w, "%d", len(ids)) // 1 of 5 has been handed over
			w.Close()
		}()
		require.NoError(t, b.runInput(t.Context(), r))
		require.Equal(t, []handed{{0, "0"}, {10 * time.Second, "1"}, {20 * time.Second, "2"}, {30 * time.Second, "3"},
			{40 * time.Second, "4"}, {50 * time.Second, "4"}}, b.handed)
		require.Empty(t, b.left(t))
	})
}

func TestMessagesOfAnEarlierProcessComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		for _, message := range []string{"1", "2"} {
			_, err := b.queue.put([]byte(message))
			require.NoError(t, err)
		}
		again, err := openSpool(b.dir)
		require.NoError(t, err)
		b.queue = again
		require.NoError(t, b.runInput(t.Context(), strings.NewReader("3\n4\n")))
		require.Equal(t, []handed{{0, "1"}, {0, "2"}, {0, "3"}, {0, "4"}}, b.handed)
	})
}

func TestStopQueuesTheInputOfTheNextSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		defer w.Close()
		go func() {
			fmt.Fprintln(w, "1")
			fmt.Fprintln(w, "2")
			time.Sleep(time.Second)
			cancel()
			time.Sleep(grace / 2)
			fmt.Fprintln(w, "3")
		}()
		start := time.Now()
		require.NoError(t, b.runInput(ctx, r))
		require.Equal(t, time.Second+grace, time.Since(start))
		require.Len(t, b.left(t), 2)
	})
}

func TestMessageThatFailsIsTriedAgainWhileInputGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		attempts := 0
		b.fail = func(string) bool { attempts++; return attempts == 1 }
		r, w := io.Pipe()
		go func() {
			fmt.Fprintln(w, "1")
			time.Sleep(10 * time.Minute)
			w.Close()
		}()
		require.NoError(t, b.runInput(t.Context(), r))
		require.Equal(t, []handed{{time.Minute, "1"}}, b.handed)
	})
}

func TestInputIsTakenAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		long := `"` + strings.Repeat("0123456789", 1<<20) + `"`
		input := "\n{\"to\": \"a\"}\r\n  \n[1]\n" + long + "\n\"no end of line\""
		require.NoError(t, b.runInput(t.Context(), strings.NewReader(input)))
		var messages []string
		for _, h := range b.handed {
			messages = append(messages, h.message)
		}
		require.Equal(t, []string{`{"to": "a"}`, "[1]", long, `"no end of line"`}, messages)
	})
}

func TestLineThatIsNotJSONIsKeptElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		require.ErrorContains(t, b.runInput(t.Context(), strings.NewReader("{1}\n2\n")), "1 lines are not JSON")
		require.Equal(t, []handed{{0, "2"}}, b.handed)
		files, err := filepath.Glob(filepath.Join(b.dir, rejected, "*"))
		require.NoError(t, err)
		require.Len(t, files, 1)
		content, err := os.ReadFile(files[0])
		require.NoError(t, err)
		require.Equal(t, "{1}", string(content))
		require.Contains(t, b.problems.String(), files[0])
	})
}

func TestLinesBeforeAReadingErrorAreHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		broken := io.MultiReader(strings.NewReader("1\n2\n"), iotest.ErrReader(errors.New("the line is cut")))
		require.ErrorContains(t, b.runInput(t.Context(), broken), "reading: the line is cut")
		require.Equal(t, []handed{{0, "1"}, {0, "2"}}, b.handed)
	})
}

func TestLineThatCannotBeQueuedIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		b.queue = &queue{dir: filepath.Join(b.dir, "missing")}
		err := b.runInput(t.Context(), strings.NewReader("1\n2\n"))
		require.ErrorIs(t, err, os.ErrNotExist)
	})
}

func TestIDsGrowEvenIfTheClockDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		b.write(t, "9000000000000000000.json") // of a clock far ahead
		q, err := openSpool(b.dir)
		require.NoError(t, err)
		last := "9000000000000000000.json"
		for range 3 { // at one instant
			id, err := q.put([]byte("1"))
			require.NoError(t, err)
			require.Greater(t, id, last)
			last = id
		}
	})
}

func TestUnfinishedFilesOfAnEarlierProcessAreRemoved(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, unfinished+"123"), []byte(`{"to`), 0o600))
	q, err := openSpool(dir)
	require.NoError(t, err)
	ids, err := q.list()
	require.NoError(t, err)
	require.Empty(t, ids)
	require.NoFileExists(t, filepath.Join(dir, unfinished+"123"))
}
