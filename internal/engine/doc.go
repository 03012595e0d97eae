// Package engine decides calls: one call with its conditions, what it has cost, the calls that
// wait, and the leases that are held. It knows no rule of package throttler, but the [Plan] that
// is made of one, and its [Outcome]s.
//
// # One decision
//
// A decision is a loop of steps. [Plan.begin] says what is asked first, and [Plan.next] what
// follows by the outcomes so far: whether either, all or the first of several conditions decide,
// and whether a refused call counts nowhere, is written there and nowhere else. Where the records
// are makes the difference in how one step is done:
//
//   - in the process (memory.go): record by record, under the lock of the store, on the stack;
//   - over a network (call.go): all conditions in one round, and what failed by the fallback. Calls
//     in the process go this way too if a fallback may decide one of several conditions;
//   - in a simulation (simulation.go): in a map, at a time that is given.
//
// What is done to one record is a change (change.go), a function of the time and the record. In
// the process the store calls it back with the record. Over a network it is an entry on its way
// through package coalesce, which calls it back whenever it knows the record, or finds another one.
//
// # One receipt
//
// A [Receipt] is what a call has cost. Until it is used it only notes the hits. There is one
// operation on it: to set totals (settle.go). Cancel sets them to 0, Release those of leases,
// Settle as it is told.
package engine
