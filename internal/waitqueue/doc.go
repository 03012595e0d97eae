// Package waitqueue says which of several waiting calls may try next.
//
// A call waits for records, each known by its key alone, to have room for its hits. The
// package knows neither rules nor servers: it is told what a try has found, and it does no
// I/O. To follow it, read queue.go, then line.go, and pace.go for outages.
//
// # Lines
//
// Each record that calls of one process wait for has a line. Every call draws a ticket when
// it comes, and each line is sorted by ticket.
//
//   - A call of Either stands in one line: that of the condition that opens last, as far as
//     this process knows. It holds no place in its other lines.
//   - A call of All stands in all its lines. The first condition to open is enough.
//   - A call of Either tries only if no lower ticket stands in any of its lines. For a call
//     of All, one such line is enough. A new call checks that too.
//   - Only the first call of a line sleeps with a timer: until its condition opens, and a
//     minute at most. All others sleep until they are woken, and cost no operation.
//
// A try tells the line when the condition opens and how much room it has. So the next call
// knows without asking when to try. If another of its conditions is known to be full then,
// it moves to that line without a try, to the place of its ticket. So a user whose own limit
// is used up does not delay others at a limit that they share.
//
// A call with a large cost at the head of its line waits until all its hits fit. The calls
// behind it wait too, so it cannot starve.
//
// Cancel, Release, Reset and Ban wake the first call in the lines of the records that they
// changed. If that call is just trying, it tries again.
//
// # Hits in flight
//
// Nobody knows when a hit in flight will be released: RetryAfter is when the first lease
// ends if it is not renewed. Release wakes the first call in line at once, without a timer.
// Another process cannot wake it. So the first call in line tries every second, one exchange
// each time. The calls behind it sleep. It waits until its deadline, even if no lease would
// end before.
//
// # When a call gives up
//
// A call estimates the earliest time at which the hits before it and its own fit. From the
// time at which the line opens, a window takes Max hits every TTL, and a bucket one every
// TTL/Max. If that is after the deadline, the call returns at once. It estimates when it
// comes, and each time that it wakes. A call that waits for hits in flight does not give up
// early.
//
// # In an outage
//
// If the backend fails, calls fail open, and a call that waits would pass at once. So each
// condition that failed open takes one hit every TTL/Max from this process, in the order of
// the line.
//
//   - If a call of Wait has seen that the record is full, the first hit comes no earlier
//     than the record opens. The last 10,000 such times are remembered.
//   - If nothing is known of the record, the first call passes at once.
//   - If a call comes too early, what it counted at other servers is given back, and it
//     keeps its place.
//
// Each try asks the backend first, so the full rate is back as soon as it answers.
//
// # Why there is no deadlock
//
// A call that waits holds nothing on the server, and no lock while it sleeps. It waits for a
// point in time or for a call with a lower ticket. So calls never wait in a circle.
//
// # Why no call starves
//
// Let W be the call with the lowest ticket. If it has one condition, it gets the next room
// there. If it has two, others may take one while the other is full. The two may open in
// turns, so that W always finds one of them taken.
//
// After W has missed three turns in this way, it stands in all its lines. Let T be the time
// at which the condition opens that W waits for. From then on, a call behind W passes only
// if its hit is gone by T. So at T, W finds room in all its conditions. W delays no call for
// longer than one hit counts.
//
// Each call becomes the one with the lowest ticket in time, so each gets through. This is a
// promise between the waiting calls of one process. Other processes, and calls of Authorize,
// may take the room first. A call of All counts in each of its conditions that has room,
// even if others stand in line there.
package waitqueue
