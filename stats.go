package throttler

import "sync/atomic"

// Stats counts what a Throttler did since it was made.
type Stats struct {
	// Exchanges is the number of times that a record was read, written, or
	// both. Over package pool, if each call has one condition, it is the number
	// of round trips.
	Exchanges uint64

	// Guesses is the number of exchanges that were decided on a remembered
	// record. RightGuesses is the number of them that found it unchanged and
	// wrote it: each saved a round trip.
	Guesses      uint64
	RightGuesses uint64

	// LostRaces is the number of times that a condition was decided again
	// because another process had changed its record.
	LostRaces uint64

	// CacheHits is the number of conditions that [Throttler.BlockCache] blocked.
	CacheHits uint64
}

// Stats returns the counts so far.
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
