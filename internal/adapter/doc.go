// Package adapter makes an Exchanger of any client. It bounds the operations that are under
// way, reads the records of several exchanges at once, and says what the errors of a client
// mean.
//
// # A server that does not answer
//
// GetMulti of gomemcache returns one error for several servers. If it takes 50 ms, all keys
// are also read one by one, as many at a time as may be under way, and the call goes on with
// what is complete first. With a ctx that cannot end, it still returns only when the client
// does. If the GetMulti fails earlier, with an error that does not name the keys, they are
// read one by one then. So a server that hangs costs one timeout, however many conditions a
// rule has, or two if it begins to hang during the call or the client's timeout is below 50
// ms. It hides no other server's records while there are places left.
//
// With a ctx that can end, an exchange runs on a goroutine of its own. It ends when the client
// gives up. With a ctx that cannot end, the call itself lasts until then. The timeout of
// gomemcache begins anew with each item of an answer, so a server that sends items for ever
// holds such a call: give each call a ctx with a deadline, or use package pool. There is no
// bound of the throttler's own, for two reasons. A caller can only leave what runs on another
// goroutine, and that must be decided before anybody knows that the server is slow: it costs
// each call 3 allocations and 12 µs of 40 (memcached on the same machine). And no time would be
// right: only the client knows its timeout.
//
// # Overload
//
// 64 operations run at once, deletes included (turnstile.go). Others wait first-in, first-out,
// for QueueTimeout at most, and then fail with ErrOverloaded. If the server leaves an operation
// unanswered, the callers that came since its last answer fail with the same error. Callers
// that came before that answer go on waiting.
//
// The client does not tell which server has a key, so all its servers share the places. If one
// hangs and 64 operations wait for it, calls for all servers wait too. When the first of the 64
// times out, they fail with its error, ErrUnavailable, if nothing was answered since they came.
// As soon as the 64 have ended, the next calls are answered. If fewer than 64 operations wait
// for it, calls for other servers use the places that are left, and none fails
// (TestOperationsOfAHungServerHoldUpOthersOnlyIfTheyTakeAllPlaces).
//
// If a server has as many connections as it may have (-c), it refuses the next one and reads
// nothing. The operation keeps its place and is tried again after 5 ms, then after longer
// pauses of up to 100 ms. After QueueTimeout it fails: with ErrOverloaded if other operations
// were answered meanwhile, and otherwise with ErrUnavailable (refused.go). A refused write was
// not carried out.
//
// In a process that is short of processor time, a connection that came too late is made again,
// and a caller that waits for its place has 200 turns of the scheduler more.
package adapter
