package throttler

import "sync/atomic"

// Stats is what a [Throttler] has done since it was made. Each number only
// grows.
type Stats struct {
	// Exchanges is the number of requests sent to the backend. Requests that
	// are sent together take one round trip.
	Exchanges uint64

	// Guesses is the number of requests that wrote a record before reading
	// it, as this process had last seen it. RightGuesses is how many of them
	// found the record unchanged, and so needed no second round trip.
	Guesses, RightGuesses uint64

	// LostRaces is the number of writes that were decided anew because another
	// writer was faster. It is the sum of all [Outcome.LostRaces], and of the
	// races that Cancel and Ban lost.
	LostRaces uint64

	// CacheHits is the number of conditions that were decided from process
	// memory.
	CacheHits uint64

	// Overloaded is the number of conditions that ended with [ErrOverloaded].
	Overloaded uint64
}

// Stats returns a snapshot of what t has done. It may be called at any time.
func (t *Throttler) Stats() Stats {
	return Stats{
		Exchanges:    t.counters.exchanges.Load(),
		Guesses:      t.counters.guesses.Load(),
		RightGuesses: t.counters.rightGuesses.Load(),
		LostRaces:    t.counters.lostRaces.Load(),
		CacheHits:    t.counters.cacheHits.Load(),
		Overloaded:   t.counters.overloaded.Load(),
	}
}

// counters are what Stats returns.
type counters struct {
	exchanges, guesses, rightGuesses, lostRaces, cacheHits, overloaded atomic.Uint64
}
