package coalesce_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/exchange"
	"github.com/adaptivethrottler/throttler/internal/adapter"
	"github.com/adaptivethrottler/throttler/internal/coalesce"
	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/internal/record"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
)

// A counter is a Change that counts one hit of a window of max, as often as it is applied.
type counter struct {
	max     int
	verdict record.Verdict
	applied int
	at      record.Instant // when it was applied last
	doubts  int
	once    bool // gives up when it is in doubt
	knows   bool // says that it knows what it has counted
}

func (c *counter) Apply(now record.Instant, r *record.Record) (store bool) {
	c.applied, c.at = c.applied+1, now
	limit := record.Limit{Max: c.max, TTL: time.Hour}
	return c.verdict.Decide(now, &limit, record.Lockout{}, r, true)
}

func (c *counter) Stands() bool { return c.verdict.Outcome.Blocked }

func (c *counter) Doubt() (again, twice bool) {
	c.doubts++
	return !c.once, !c.knows
}

// A server carries exchanges out on a store, one after the other. Each takes a
// millisecond.
type server struct {
	adapter.Client // a memstore, without its own exchanges
	trips          int
	do             func(x exchange.Exchange) exchange.Result // instead; nil: as usual
}

func (s *server) Exchange(ctx context.Context, xs ...exchange.Exchange) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, x := range xs {
			s.trips++
			do := s.do
			if s.do = nil; do == nil {
				do = s.write
			}
			x.Done(do(x))
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func (s *server) Start(xs ...exchange.Exchange) { go s.Exchange(context.Background(), xs...) }

// write carries x out as package pool does: it writes what x proposes, and reads.
func (s *server) write(x exchange.Exchange) exchange.Result {
	return s.writeInTurn(x, exchange.Turn{Conn: 1})
}

func (s *server) writeInTurn(x exchange.Exchange, turn exchange.Turn) exchange.Result {
	item := x.Propose(turn)
	time.Sleep(time.Millisecond)
	r := exchange.Result{Conn: 1, Read: true}
	if item != nil {
		r.Stored = s.put(item) == nil
	}
	r.Found = s.at(x.Key())
	return r
}

func (s *server) put(item *memcache.Item) error {
	own := *item
	if item.CasID == 0 {
		return s.Add(&own)
	}
	return s.CompareAndSwap(&own)
}

func (s *server) at(key string) *memcache.Item {
	item, err := s.Get(key)
	if err != nil {
		return nil
	}
	return item
}

// hits returns how many hits are stored.
func (s *server) hits(t *testing.T) int {
	item := s.at("k")
	if item == nil {
		return 0
	}
	r, err := record.Decode(item.Value)
	require.NoError(t, err)
	return len(r.Facts().Expiries)
}

// table returns a Table over s, as if in a process of its own.
func table(s *server) (*coalesce.Table, *coalesce.Counts) {
	counts := new(coalesce.Counts)
	return coalesce.NewTable(s, coalesce.Config{Remembered: 100, Timeout: time.Second, Counts: counts}), counts
}

func ask(ctx context.Context, t *coalesce.Table, changes ...*counter) []*coalesce.Entry {
	entries := make([]*coalesce.Entry, len(changes))
	for i, c := range changes {
		entries[i] = &coalesce.Entry{Key: "k", Change: c, Patience: c.max}
	}
	t.Ask(ctx, &coalesce.Round{Entries: entries})
	return entries
}

// inTime runs test in time that is held.
func inTime(t *testing.T, test func(t *testing.T, s *server)) {
	synctest.Test(t, func(t *testing.T) { test(t, &server{Client: memstore.New()}) })
}

func TestARecordAsItWasSeenLastTakesOneExchange(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		mine, counts := table(s)
		for n := range 3 {
			require.NoError(t, ask(t.Context(), mine, &counter{max: 9})[0].Failed())
			require.Equal(t, n+1, s.trips)
		}
		others, _ := table(s)
		ask(t.Context(), others, &counter{max: 9})
		before := s.trips
		c := &counter{max: 9}
		e := ask(t.Context(), mine, c)[0]
		require.NoError(t, e.Failed())
		require.Equal(t, 2, s.trips-before, "the guess was wrong")
		require.Zero(t, e.LostRaces, "that is no race")
		require.Equal(t, 4, c.verdict.Outcome.Remaining)
		require.Equal(t, 5, s.hits(t))
		require.EqualValues(t, 3, counts.Guesses.Load())
		require.EqualValues(t, 2, counts.RightGuesses.Load())
	})
}

// When a window has ended, the store drops its record, and the next hit is added.
func TestAValueThatReturnsAfterItsWindowTakesOneExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{Client: memstore.New()}
		table, counts := table(s)
		ask(t.Context(), table, &counter{max: 5})
		time.Sleep(time.Hour + 2*time.Second)
		ask(t.Context(), table, &counter{max: 5}) // on the record, which is still there
		require.Equal(t, 2, s.trips)
		time.Sleep(time.Hour + 4*time.Second)
		require.Nil(t, s.at("k"))
		ask(t.Context(), table, &counter{max: 5})
		require.Equal(t, 3, s.trips)
		require.Equal(t, 1, s.hits(t))
		require.EqualValues(t, 2, counts.RightGuesses.Load())
	})
}

func TestChangesThatWaitTogetherAreStoredByOneWrite(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		mine, _ := table(s)
		go ask(context.Background(), mine, &counter{max: 3})
		synctest.Wait()
		changes := []*counter{{max: 3}, {max: 3}, {max: 3}}
		ask(t.Context(), mine, changes...)
		require.Equal(t, 2, s.trips)
		require.Equal(t, 3, s.hits(t))
		for i, blocked := range []bool{false, false, true} {
			require.Equal(t, blocked, changes[i].Stands(), "in the order in which they came")
		}
	})
}

// lost carries x out, and loses the answer: x is proposed again on another connection,
// after what happens meanwhile.
func (s *server) lost(meanwhile func()) func(x exchange.Exchange) exchange.Result {
	return func(x exchange.Exchange) exchange.Result {
		_ = s.put(x.Propose(exchange.Turn{Conn: 1}))
		meanwhile()
		r := exchange.Result{Conn: 2, Read: true, Found: s.at(x.Key())}
		if item := x.Propose(exchange.Turn{Conn: 2}); item != nil {
			r.Stored = s.put(item) == nil
			r.Found = s.at(x.Key())
		}
		return r
	}
}

// A hit would otherwise expire too early, by as long as the exchanger takes from its clock to
// the proposal.
func TestAChangeThatCameAfterTheExchangersClockIsNotDecidedAtItsTime(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		mine, _ := table(s)
		first, late := &counter{max: 9}, &counter{max: 9}
		var came record.Instant
		s.do = func(x exchange.Exchange) exchange.Result {
			turn := exchange.Turn{Conn: 1, Now: time.Now()}
			time.Sleep(time.Second)
			came = record.InstantOf(time.Now())
			go ask(t.Context(), mine, late)
			synctest.Wait()
			return s.writeInTurn(x, turn)
		}
		ask(t.Context(), mine, first)
		synctest.Wait()
		require.Equal(t, 1, s.trips)
		require.Equal(t, came, late.at)
	})
}

func TestALostWriteThatIsFoundInTheRecordIsNotMadeAgain(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		mine, _ := table(s)
		s.do = s.lost(func() {})
		c := &counter{max: 9}
		e := ask(t.Context(), mine, c)[0]
		require.NoError(t, e.Failed())
		require.NoError(t, e.Note)
		require.Zero(t, c.doubts)
		require.Equal(t, 1, s.hits(t))
	})
}

func TestALostWriteThatOthersHaveCoveredIsDoubted(t *testing.T) {
	for once, want := range map[bool]int{false: 3, true: 2} {
		inTime(t, func(t *testing.T, s *server) {
			mine, _ := table(s)
			others, _ := table(s)
			s.do = s.lost(func() { ask(context.Background(), others, &counter{max: 9}) })
			c := &counter{max: 9, once: once}
			e := ask(t.Context(), mine, c)[0]
			require.Equal(t, 1, c.doubts)
			if once {
				require.ErrorIs(t, e.Failed(), coalesce.ErrLostAnswer)
			} else {
				require.NoError(t, e.Failed())
				require.ErrorIs(t, e.Note, coalesce.ErrLostAnswer)
			}
			require.Equal(t, want, s.hits(t))
		})
	}
}

func TestADoubtThatChangesNothingIsNotTold(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		mine, _ := table(s)
		others, _ := table(s)
		s.do = s.lost(func() { ask(context.Background(), others, &counter{max: 9}) })
		c := &counter{max: 9, knows: true}
		e := ask(t.Context(), mine, c)[0]
		require.Equal(t, 1, c.doubts)
		require.NoError(t, e.Failed())
		require.NoError(t, e.Note)
	})
}

// overtaken has another process be faster with each of the first n writes. Each answer of
// the server is looked at after lateness.
func (s *server) overtaken(n int, lateness time.Duration) {
	others, _ := table(&server{Client: s.Client})
	var beaten func(x exchange.Exchange) exchange.Result
	beaten = func(x exchange.Exchange) exchange.Result {
		if n--; n > 0 {
			s.do = beaten
		}
		ask(context.Background(), others, &counter{max: 1000})
		r := s.write(x)
		time.Sleep(lateness)
		return r
	}
	s.do = beaten
}

func TestAProcessThatIsLateGivesUpNoSooner(t *testing.T) {
	for _, lateness := range []time.Duration{0, 2 * time.Second, time.Minute} {
		inTime(t, func(t *testing.T, s *server) {
			mine, _ := table(s)
			const races = 10
			s.overtaken(races+1, lateness)
			e := ask(t.Context(), mine, &counter{max: 1000})[0]
			require.NoError(t, e.Failed(), "%v", lateness)
			require.Equal(t, races, e.LostRaces, "%v", lateness) // the first guess was no race
			require.Equal(t, races+2, s.hits(t))
		})
	}
}

func TestAChangeThatKeepsLosingEndsInTime(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		mine, _ := table(s)
		const answer = 50 * time.Millisecond
		s.overtaken(1000, answer)
		begin := time.Now()
		e := ask(t.Context(), mine, &counter{max: 1000})[0]
		require.ErrorIs(t, e.Failed(), failure.ErrOverloaded)
		require.InDelta(t, time.Second, time.Since(begin), float64(4*answer))
	})
}

func TestWhatIsBlockedByTheRecordStandsThoughItCannotBeStored(t *testing.T) {
	refused := errors.New("SERVER_ERROR out of memory")
	for max, blocked := range map[int]bool{1: true, 2: false} {
		inTime(t, func(t *testing.T, s *server) {
			others, _ := table(s)
			ask(t.Context(), others, &counter{max: 9})
			mine, _ := table(s)
			s.do = func(x exchange.Exchange) exchange.Result {
				x.Propose(exchange.Turn{Conn: 1, Known: true, Found: s.at(x.Key())})
				return exchange.Result{Conn: 1, Read: true, Found: s.at(x.Key()), Err: refused}
			}
			c := &counter{max: max}
			e := ask(t.Context(), mine, c)[0]
			require.Equal(t, blocked, c.Stands())
			if !blocked {
				require.Equal(t, refused, e.Failed())
			} else {
				require.NoError(t, e.Failed())
			}
			require.Equal(t, 1, s.hits(t))
		})
	}
}

func TestAServerThatDoesNotAnswerFailsThoseThatCameLaterToo(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		mine, _ := table(s)
		s.do = func(x exchange.Exchange) exchange.Result {
			x.Propose(exchange.Turn{Conn: 1})
			time.Sleep(time.Second)
			return exchange.Result{Err: failure.ErrUnavailable, Unknown: true}
		}
		var first *coalesce.Entry
		go func() { first = ask(context.Background(), mine, &counter{max: 9})[0] }()
		time.Sleep(time.Millisecond * 2)
		later := ask(t.Context(), mine, &counter{max: 9})[0]
		synctest.Wait()
		require.ErrorIs(t, first.Failed(), failure.ErrUnavailable)
		require.True(t, first.Unknown)
		require.ErrorIs(t, later.Failed(), failure.ErrUnavailable)
		require.False(t, later.Unknown, "it was never sent")
		require.Equal(t, 1, s.trips)
	})
}

// A proxy that has given a write up says so, and what is read then may be the record of before.
func TestAWriteThatMayArriveAfterItsRecordWasReadIsUnknown(t *testing.T) {
	for _, unknown := range []bool{true, false} {
		inTime(t, func(t *testing.T, s *server) {
			mine, _ := table(s)
			s.do = func(x exchange.Exchange) exchange.Result {
				x.Propose(exchange.Turn{Known: true})
				return exchange.Result{Read: true, Err: errors.New("SERVER_ERROR"), Unknown: unknown}
			}
			e := ask(t.Context(), mine, &counter{max: 9})[0]
			require.Error(t, e.Failed())
			require.Equal(t, unknown, e.Unsure())
		})
	}
}

func TestAnEntryThatIsLeftIsNotSentOrItsResultComesLater(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		mine, _ := table(s)
		go ask(context.Background(), mine, &counter{max: 9})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond/2)
		defer cancel()
		waiting := ask(ctx, mine, &counter{max: 9})[0]
		require.ErrorIs(t, waiting.Failed(), context.DeadlineExceeded)
		require.True(t, waiting.Unsent)
		time.Sleep(time.Second)
		require.Equal(t, 1, s.hits(t))

		var under *coalesce.Entry
		ctx, cancel = context.WithCancel(t.Context())
		leader := &coalesce.Entry{Key: "k", Change: &counter{max: 9}}
		go mine.Ask(context.Background(), &coalesce.Round{Entries: []*coalesce.Entry{leader}})
		synctest.Wait()
		go func() { under = ask(ctx, mine, &counter{max: 9})[0] }()
		time.Sleep(time.Millisecond * 3 / 2) // the second exchange is under way
		cancel()
		synctest.Wait()
		require.ErrorIs(t, under.Failed(), context.Canceled)
		require.False(t, under.Unsent)
		require.True(t, under.Wait(t.Context()))
		require.NoError(t, under.Err)
		require.Equal(t, 3, s.hits(t))
	})
}

func TestAResetIsNotUndoneByWhatIsRemembered(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		mine, _ := table(s)
		ask(t.Context(), mine, &counter{max: 1})
		require.Equal(t, []error{nil}, mine.Reset(t.Context(), []string{"k"}, func(string) {}))
		c := &counter{max: 1}
		ask(t.Context(), mine, c)
		require.False(t, c.Stands())
		require.Equal(t, []error{nil}, mine.Reset(t.Context(), []string{"nothing"}, func(string) {}), "a record that is not there is gone")
	})
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		mine := coalesce.NewTable(s, coalesce.Config{Remembered: 3, Timeout: time.Second, Counts: new(coalesce.Counts)})
		for _, key := range []string{"a", "b", "c", "d", "e"} {
			mine.Ask(t.Context(), &coalesce.Round{Entries: []*coalesce.Entry{{Key: key, Change: &counter{max: 9}}}})
		}
		all, used := mine.Size()
		require.Equal(t, 3, all)
		require.Zero(t, used)
	})
}

// A record counts once more for each KiB.
func TestLargeRecordsThatAreRememberedCountForSeveral(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		remembering := func(records, large int) (ask func(key string, hits int) (trips int), size func() int) {
			mine := coalesce.NewTable(s, coalesce.Config{Remembered: records, Large: large, Timeout: time.Second, Counts: new(coalesce.Counts)})
			return func(key string, hits int) int {
					before := s.trips
					mine.Ask(t.Context(), &coalesce.Round{Entries: []*coalesce.Entry{{Key: key, Change: &bulk{hits}}}})
					return s.trips - before
				}, func() int {
					all, _ := mine.Size()
					return all
				}
		}
		ask, size := remembering(5, 0)
		require.Equal(t, 1, ask("large", 300)) // of 5 bytes each: between 1 and 2 KiB
		require.Equal(t, 1, ask("larger", 300))
		require.Equal(t, 1, ask("large", 1))
		require.Equal(t, 1, ask("larger", 1))
		require.Equal(t, 2, size())
		require.Equal(t, 1, ask("third", 300))
		require.Equal(t, 2, ask("large", 1), "it was forgotten")

		ask, _ = remembering(1, 0)
		require.Equal(t, 1, ask("huge", 300))
		require.Equal(t, 2, ask("huge", 1), "it is too large for all")

		ask, size = remembering(5, 256)
		require.Equal(t, 1, ask("fine", 300)) // of 8 places
		require.Zero(t, size())
		ask, size = remembering(9, 256)
		require.Equal(t, 1, ask("finer", 300))
		require.Equal(t, 1, size())
	})
}

// A bulk is a Change that counts so many hits.
type bulk struct{ hits int }

func (b *bulk) Apply(now record.Instant, r *record.Record) (store bool) {
	var v record.Verdict
	return v.Decide(now, &record.Limit{Max: 10_000, TTL: time.Hour, Cost: b.hits}, record.Lockout{}, r, true)
}

func (b *bulk) Stands() bool               { return false }
func (b *bulk) Doubt() (again, twice bool) { return true, true }

// What the Exchanger says was not stored, nobody else's hit can hide.
func TestAWriteThatWasNotStoredIsNotDoubted(t *testing.T) {
	for notStored, doubts := range map[bool]int{true: 0, false: 1} {
		inTime(t, func(t *testing.T, s *server) {
			mine, _ := table(s)
			others, _ := table(s)
			s.do = func(x exchange.Exchange) exchange.Result {
				x.Propose(exchange.Turn{Conn: 1})
				ask(context.Background(), others, &counter{max: 9})
				return s.writeInTurn(x, exchange.Turn{Conn: 2, NotStored: notStored})
			}
			c := &counter{max: 9}
			require.NoError(t, ask(t.Context(), mine, c)[0].Failed())
			require.Equal(t, doubts, c.doubts)
		})
	}
}

func TestARecordThatMayHaveChangedBlocksNobodyMore(t *testing.T) {
	for _, unknown := range []bool{true, false} {
		inTime(t, func(t *testing.T, s *server) {
			blocks := coalesce.NewBlocks(10, time.Minute)
			mine := coalesce.NewTable(s, coalesce.Config{Remembered: 100, Timeout: time.Second, Counts: new(coalesce.Counts), Blocks: blocks})
			blocked := func() bool {
				_, ok := blocks.Get("k", record.InstantOf(time.Now()))
				return ok
			}
			for range 2 {
				mine.Ask(t.Context(), &coalesce.Round{Entries: []*coalesce.Entry{{Key: "k", Change: &counter{max: 1}, Cached: true}}})
			}
			require.True(t, blocked())
			s.do = func(x exchange.Exchange) exchange.Result {
				x.Propose(exchange.Turn{Conn: 1})
				return exchange.Result{Err: errors.New("connection reset"), Unknown: unknown}
			}
			require.Error(t, ask(t.Context(), mine, &counter{max: 9})[0].Failed())
			require.Equal(t, !unknown, blocked())
		})
	}
}

// Such as one that comes after a Reset.
func TestACallThatComesBeforeAnotherOneGivesUpIsNotDecidedOnTheRecordOfThat(t *testing.T) {
	inTime(t, func(t *testing.T, s *server) {
		mine, _ := table(s)
		full := &counter{max: 1}
		ask(t.Context(), mine, full)
		assessed := &coalesce.Entry{Key: "k", Change: &counter{max: 1}, Precedes: true}
		mine.Ask(t.Context(), &coalesce.Round{Entries: []*coalesce.Entry{assessed}})

		giveUp := make(chan struct{})
		s.do = func(exchange.Exchange) exchange.Result {
			<-giveUp
			return exchange.Result{Err: failure.ErrOverloaded}
		}
		following := &coalesce.Entry{Key: "k", Change: &counter{max: 9}}
		following.Follow(assessed)
		go mine.Ask(t.Context(), &coalesce.Round{Entries: []*coalesce.Entry{following}})
		synctest.Wait()
		require.Equal(t, []error{nil}, mine.Reset(t.Context(), []string{"k"}, func(string) {}))
		later := &counter{max: 1}
		done := make(chan struct{})
		go func() { ask(t.Context(), mine, later); close(done) }()
		synctest.Wait()
		close(giveUp)
		<-done
		require.ErrorIs(t, following.Failed(), failure.ErrOverloaded)
		require.Equal(t, 1, later.applied, "on the record as it is")
		require.False(t, later.Stands())
	})
}
