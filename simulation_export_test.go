package throttler

// Records returns the number of records that s keeps.
func Records(s *Simulation) int { return len(s.records) }
