// Package record has what is stored for one value of one condition, and what one call
// makes of it: the algorithms, the bans and the bytes.
//
// Everything in it is a function of its arguments: the record as it was read, the limit,
// and the time. It asks no server and no clock, waits for nothing and holds no lock. The
// packages that use it make sure that a record does not change between its read and its
// write.
//
// To follow a decision read [Verdict.Decide], then window.go, bucket.go and ban.go. What
// is stored is described below, and its bytes in codec.go.
//
// # Windows, bans and buckets
//
// A window stores the full expiry time of its last hit, and the low w bytes of each one. w
// is the number of bytes that the longest TTL among them needs: 5 for a TTL up to 18 minutes,
// 6 up to 3.2 days. Two unexpired hits are never further apart than that, so each full time
// follows from the last one. All entries have one size. Binary search finds the expired ones,
// and a hit is added by copying. There is one encoding for each record. A fuzz target checks it.
//
// All times are in nanoseconds. Tenths of a millisecond would save 2 bytes a hit, at most 1 kB a
// record. But then RetryAfter would be rounded up, beyond TTL for a hit of now, and a Cancel
// after a Reset would meet the hits of other calls of the same tenth.
//
// A ban is its end and its length, and replaces the hits: 18 bytes. Growing bans also store
// how many there were in a row, for as long as that is remembered. A leaky bucket is two times,
// a rate and a count: 44 bytes, whatever Max is. A calendar is the bounds of its period, the
// time of its first hit and a count: 34 bytes. A lease of a hit in flight is the ID of the call
// that took it, its end, its TTL and its hits: 28 bytes.
//
// Settle may count more hits than Max. A window holds them like all others, up to 1,000,000,
// even with a Max of 10. A calendar counts them. The score of a bucket is further than TTL from
// its clock then, and all of that is a debt: no call may make it so.
//
// # Long windows
//
// A window that holds more than 500 hits stores how many of them expire in each cell of time,
// instead of when each one does: 10,000 hits in an hour are 60 kB as a list, which each
// decision sends, and 1.1 kB as cells. It counts in cells until it is empty. All hits of a cell
// expire at its end. So a hit may count for one cell too long, and never too short: no TTL
// holds more than Max.
//
//   - A cell is TTL/1024 or shorter: 3.3 s for an hour, 52 s for a day. There are 1,024 to 2,048
//     of them in a TTL.
//   - A count has 1 byte while no cell holds more than 255 hits, then 2 or 3. A million hits
//     in a day are 3.3 kB, and no window takes more than 6.2 kB.
//   - Cells are aligned to the epoch, and their length depends on TTL alone. So all processes
//     have the same cells, and a receipt that was written before finds the cell that its hits
//     are in.
//   - The length is 3,125 ns times a power of two. If TTL is changed, each cell of the shorter
//     TTL lies within one of the longer. A hit moves to the end of the cell that it is in, and
//     no further, however often that is. As long as there are hits of the longer TTL, its cells
//     are used for all.
//   - Cancel takes a hit out of the cell of its expiry. The record also stores a time that all
//     its hits are later than. So a hit from before a Reset is not found, and takes nobody's
//     back.
//
// Two other ways were tried. Differences between times take 17 kB at best for those 10,000
// hits, and grow all the same. Pieces that are sealed when full, in items of their own, take 4
// kB; but Cancel and RetryAfter need a piece and the head at once, which no server changes
// together, and an evicted piece loses hits silently.
//
// # Versions
//
// The first byte is the version, 1. A release leaves records of the next versions alone: the
// condition fails with ErrNewerRecord. Any other value that does not decode is treated as absent
// and overwritten.
//
// # Keys
//
// A key is identifier#name#value, as in the original, where that is legal and can be taken apart
// again. Any other triple is hashed. See [Key].
//
// # Expiry
//
// memcached counts in whole seconds and may drop an item up to one second early. So the ends
// of hits and bans are in the record, and the item's expiry only frees memory. It is at least
// two seconds after the content ends: one for memcached, one for callers whose clocks are
// behind. An expiry of more than 30 days is a date by memcached's clock, and gets an hour more.
// Dates are an int32 and end in January 2038, and so does content.
//
// # Clocks
//
// All use the callers' wall clocks; one that all machines share would cost a round trip. Two
// things can go wrong. A clock that is wrong by hours must not lock anyone out for hours, so
// what it has stored is cut to the reader's own clock. But whoever cuts opens the record to those
// whose clocks are ahead, and may do so with each call. So
//
//   - a bucket, a ban or a lease that ends up to a minute too late, or its own length, is left
//     as it is: see [farthest]. The three are then safe between clocks that differ by less;
//   - a window is cut to now+TTL when it blocks, or else RetryAfter would be longer than TTL. A
//     hit still counts for TTL-d if clocks differ by d. If d is TTL or more, nothing is promised;
//   - a calendar counts in the later of two periods.
//
// An expiry later than now+TTL comes from a clock that is ahead, or from a hit that was counted
// under a longer TTL, or was taken ahead. The last ones are known by the longest TTL that the
// record was written under, and count until then. The others count as now+TTL. The stored time
// is corrected
//
//   - at the next write, if the clock is to blame: the expiry is later than that longest TTL
//     allows;
//   - at once, with a write of its own, if the hit blocks. Otherwise each call would count it
//     as its own now + TTL, and it would never expire.
//
// A hit of a longer TTL that blocks no call keeps its time. So a rule with a shorter TTL on the
// same values, while it is not full, does not wipe out the hits of another rule.
//
// # Hits that are given back
//
// Settle with a smaller total takes back a part of a call, the newest hits first. Cancel is a
// Settle of all conditions with the total 0.
//
// In a window, hits are told apart by their expiry. A Cancel that finds no hit of that
// expiry changes nothing: it came too late, or after a ban or a Reset, or a clock that is
// behind has corrected the hit. If two clocks differ by d, that happens to each hit of the
// one ahead in whose record the other counts within d after it. The hit then stays until it
// expires. Any difference is enough, so Cancel may give back too little between machines whose
// clocks differ by milliseconds. It never gives back too much.
//
// To leave such hits as they are, up to some difference, would break what all the rest is
// built on: no hit is later than now + TTL. The size of entries follows from that, and so do
// RetryAfter and the times of hits beside a ban.
//
// Hits of one expiry are alike. So a Cancel after a Reset takes back the hit of another call
// if that was counted in the same nanosecond as its own.
//
// # Bans on hits that are given back
//
// With CountAuthorizedOnly and several conditions, a call may count in one condition
// before another one refuses it. It then gives the hit back. Meanwhile, another call may find
// the condition full because of that hit, and set a ban below the limit. Therefore, under such
// a rule:
//
//   - A ban keeps the hits that it was set on.
//   - When one of them is given back, and the rest would have had room for one hit, the ban is
//     lifted. The hits count again, and the ban does not count for growth. The one before it is
//     remembered until its own time: such a ban stores when that ended.
//   - A bucket keeps a moment of such a hit (see below). So it sets no ban in the last moment
//     before it opens: a second, or half the time in which one hit leaks if that is shorter.
//   - Cancel and Settle lift no ban: their hits were authorized.
//
// When a ban ends, counting starts anew: the hits beside it never count then.
//
// # Refund
//
// Refund takes back the newest hits of a record without knowing whose they are: for Envoy's
// is_negative_hits, for example. The hits of a bucket or a calendar that were counted before
// can then no longer be cancelled, because they may be those that are gone. In a window, do not
// cancel a hit that was refunded: another one may have the same expiry.
//
// # Leaky buckets and Cancel
//
// A bucket stores one time, its score S: when it will be empty. Hits cannot be told apart
// in it. How much of one may Cancel take back?
//
// What would be right: let call i be counted at tᵢ, with the amount aᵢ: its cost
// times TTL/Max. Times are those of the bucket, which never go back: it is at the latest clock
// of all that have poured. Let B be the bucket of the same calls, each made smaller from the
// beginning by what was taken back of it so far. The claim is that the stored bucket is always
// B. It is true at the start, and each counted call keeps it true.
//
// If call i had been smaller by r, B would now be lower by r, unless B had become
// empty in between. It does not become empty as long as r is at most
//
//	dᵢ = min(aᵢ, lowest level of B from tᵢ until now)
//
// So a Cancel that takes back r ≤ dᵢ keeps the claim. A bucket that had never seen the
// cancelled calls is nowhere higher than B. So the calls that were not cancelled still
// count in full, and never exceed what the bucket admits.
//
// What is known: the lowest level of B is not stored, but two bounds of it are.
//
//  1. Right after tᵢ the level was at least aᵢ, and it falls by no more than the time
//     that has passed. So dᵢ ≥ aᵢ − (now − tᵢ).
//  2. The score was Sᵢ after call i. In B, only calls before it that were taken back
//     since have lowered that. So dᵢ ≥ min(aᵢ, Sᵢ − m − now), where m is at least
//     what they gave back. The record counts what was taken back from anywhere but the top,
//     which includes them.
//
// Cancel takes back the larger of the two, and no more than there is. So
//
//   - a cancelled call leaves behind at most what leaks between Authorize and Cancel, in
//     any order and for any number of calls. A burst that is cancelled at once leaves nothing;
//     a login that takes 50 ms leaves at most 50 ms of the bucket;
//   - calls that are cancelled newest first leave nothing, however late.
//
// Why not more: take a record and a receipt, with m units counted. Perhaps all m were
// taken back right after call i, from calls before it. And perhaps all that is in the bucket
// now was poured in a moment ago. Then dᵢ is exactly the larger of the two bounds, and to
// take back more would take it from other calls. To tell such histories apart, the record
// would need the lowest level since each call.
//
// A part of a call is its last hits: the call is taken to be two, the second one poured in
// right after the first. Both have the bounds above, so the claim stays true, and the part
// leaves behind at most what leaked of it. A surplus that Settle pours in is a call of its
// own. It may lift B over the brim; nothing above depends on where that is.
//
// After a reset nothing may be taken from the bucket that others have filled since. The
// record's count begins at a number that the time of the first hit spreads over all 65,536.
// And a score must be explained by what was taken back: S ≥ Sᵢ − m. So a receipt of the
// earlier bucket fits by chance in at most one case of 64 (of 512 with a Max up to 64). The new
// bucket must also be as full as the old one was. The receipt then takes one call's amount at
// most.
//
// A receipt of another rate is refused, and its hit left to leak. So is one if too much was
// taken back since. The bound is 1,024 units. Below a Max of 512 it is twice Max, and below 64 it is 128. A unit is
// one hit up to a Max of 1,024. In a larger bucket, 1,024 units fill it. A surplus may be more
// than the bucket holds. To give that back counts as one unit more than the bound, so all
// receipts from before it are refused.
//
// A lost answer leaves open whether the hit is gone. Cancel does not try again then,
// because it might take back another call's hit. Nor does it if a client that repeats writes
// itself, such as pool, reports that the first try may have succeeded. Settle does not try
// again either, with one exception: a lease is known by its ID, so its hits are set as often as
// it takes.
package record
