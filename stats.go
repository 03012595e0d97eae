package throttler

import "sync/atomic"

// Stats is what became of a Throttler's calls since it was made.
type Stats struct {
	// Exchanges is how often a record was read, written or both. Over a
	// client with one round trip an exchange, as package pool, it is the
	// number of round trips as long as each call has one condition.
	Exchanges uint64

	// Guesses is how many exchanges were decided on a record as this process
	// remembered it, and RightGuesses how many of them found and changed it
	// so: each saved a round trip.
	Guesses      uint64
	RightGuesses uint64

	// LostRaces is how often a condition was decided anew because another
	// process had changed its record in the meantime.
	LostRaces uint64

	// CacheHits is how many conditions [Throttler.BlockCache] has blocked.
	CacheHits uint64
}

// Stats returns a snapshot.
func (t *Throttler) Stats() Stats {
	return Stats{
		Exchanges:    t.stats.exchanges.Load(),
		Guesses:      t.stats.guesses.Load(),
		RightGuesses: t.stats.rightGuesses.Load(),
		LostRaces:    t.stats.lostRaces.Load(),
		CacheHits:    t.stats.cacheHits.Load(),
	}
}

type counters struct {
	exchanges, guesses, rightGuesses, lostRaces, cacheHits atomic.Uint64
}
