package exchange

// A KeyError is an error of GetMulti that returns the error of each key, or nil. A
// key without an error and without an item is not stored. After any other error, the
// throttler asks for each missing key by itself.
type KeyError interface {
	error
	KeyError(key string) error
}

// A MaybeDoneError is an error of Add or CompareAndSwap, from a Client that repeats a
// write whose answer was lost. The record had changed. MaybeDone reports whether the
// first try may have changed it.
type MaybeDoneError interface {
	error
	MaybeDone() bool
}
