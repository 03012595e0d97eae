package otelthrottle

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/counts"
)

// The defaults of a [Log].
const (
	defaultEvery = 10 * time.Second
	defaultBurst = 5
)

// maxStreams is the number of rules with lines of their own. Others share.
const maxStreams = 256

// A Log writes these decisions to a slog.Logger: a call was blocked (or with
// Shadow would have been), or a ban was set. Authorized calls are not written.
// An outage of the backend is two lines: one when a call finds it failed, and
// one when no call has failed for Every.
//
// It cannot flood the log. For each rule and each of these kinds it writes
// Burst lines in a period of Every, which begins with the first line. At the
// end of the period one more line tells the number of lines left out. Rules
// beyond the first 256 share their lines.
//
// The exported fields are options. They must be set before the first use. All
// methods are safe for concurrent use.
type Log struct {
	// Logger is the destination. Default: slog.Default().
	Logger *slog.Logger

	// Every is the length of a period. Default: 10 s.
	Every time.Duration

	// Burst is the number of lines in a period. Default: 5.
	Burst int

	// Values writes the Values of the conditions concerned too: addresses and
	// user names, which are personal data. Default: only names of conditions.
	Values bool

	mu      sync.Mutex            // not held while a line is written
	streams map[streamKey]*stream // guarded by mu
	outage  *outage               // guarded by mu; nil: the backend answers
	closed  bool                  // guarded by mu
	ending  sync.WaitGroup        // periods that have ended and whose last line is being written
}

// A kind is the subject of a line.
type kind int

const (
	blockedKind kind = iota
	wouldBlockKind
	banKind
)

var messages = [...]string{
	blockedKind:    "call blocked",
	wouldBlockKind: "call would be blocked",
	banKind:        "ban set",
}

var levels = [...]slog.Level{
	blockedKind:    slog.LevelInfo,
	wouldBlockKind: slog.LevelInfo,
	banKind:        slog.LevelWarn,
}

// A streamKey identifies a stream.
type streamKey struct {
	rule string
	kind kind
}

// A stream counts the lines of a rule and kind in a period.
type stream struct {
	lines   int         // written in this period
	omitted int         // not written in this period
	end     *time.Timer // of the period
}

// Observe writes the lines about d. It fits [throttler.Throttler.Observe].
func (l *Log) Observe(ctx context.Context, rule throttler.Rule, d throttler.Decision) {
	switch {
	case d.Status == throttler.Blocked:
		l.write(ctx, blockedKind, &rule, &d, isBlocked)
	case d.WouldBlock:
		l.write(ctx, wouldBlockKind, &rule, &d, isBlocked)
	}
	if concerned(&d, isNewBan) {
		l.write(ctx, banKind, &rule, &d, isNewBan)
	}
	if d.Err != nil && l.fails() {
		l.logger().LogAttrs(ctx, slog.LevelError, "throttler: the backend fails",
			slog.String("rule", rule.Identifier), l.conditions(&rule, &d, hasFailed), slog.Any("err", d.Err))
	}
}

func isBlocked(o *throttler.Outcome) bool { return o.Blocked }
func isNewBan(o *throttler.Outcome) bool  { return o.NewBan }
func hasFailed(o *throttler.Outcome) bool { return o.Err != nil }

func concerned(d *throttler.Decision, is func(*throttler.Outcome) bool) bool {
	for i := range d.Outcomes {
		if is(&d.Outcomes[i]) {
			return true
		}
	}
	return false
}

// write writes a line about the conditions of d that match is, if the period
// has room.
func (l *Log) write(ctx context.Context, k kind, rule *throttler.Rule, d *throttler.Decision, is func(*throttler.Outcome) bool) {
	if !l.logger().Enabled(ctx, levels[k]) || !l.admit(k, rule.Identifier) {
		return
	}
	attrs := make([]slog.Attr, 0, 3)
	attrs = append(attrs, slog.String("rule", rule.Identifier), l.conditions(rule, d, is))
	if d.RetryAfter > 0 {
		attrs = append(attrs, slog.Duration("retry_after", d.RetryAfter))
	}
	l.logger().LogAttrs(ctx, levels[k], "throttler: "+messages[k], attrs...)
}

// conditions names the conditions of d that match is, with their values if
// l.Values is set.
func (l *Log) conditions(rule *throttler.Rule, d *throttler.Decision, is func(*throttler.Outcome) bool) slog.Attr {
	conditions := rule.Conditions()
	var names []string
	var values []any
	for i := range d.Outcomes {
		if o := &d.Outcomes[i]; is(o) {
			names = append(names, o.Name)
			if i < len(conditions) {
				values = append(values, slog.String(o.Name, conditions[i].Value))
			}
		}
	}
	if l.Values {
		return slog.Group("conditions", values...)
	}
	return slog.String("conditions", strings.Join(names, ","))
}

// An outage is a time in which calls find the backend failed.
type outage struct {
	began, last time.Time
	calls       int
	check       *time.Timer
}

// fails counts a call that has found the backend failed, and reports whether it is the first
// one of an outage.
func (l *Log) fails() (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	now := time.Now()
	if first = l.outage == nil; first {
		l.outage = &outage{began: now, check: time.AfterFunc(l.every(), l.checkOutage)}
	}
	l.outage.last = now
	l.outage.calls++
	return first
}

// checkOutage ends the outage if no call has failed for Every.
func (l *Log) checkOutage() {
	l.mu.Lock()
	o := l.outage
	if o == nil || l.closed {
		l.mu.Unlock()
		return
	}
	if left := l.every() - time.Since(o.last); left > 0 {
		o.check.Reset(left)
		l.mu.Unlock()
		return
	}
	l.outage = nil
	l.ending.Add(1)
	defer l.ending.Done()
	l.mu.Unlock()
	l.logger().LogAttrs(context.Background(), slog.LevelInfo, "throttler: the backend answers again",
		slog.Int("calls", o.calls), slog.Duration("failed_for", o.last.Sub(o.began)))
}

// admit reports whether the period of a rule and kind has room for a line, and
// counts it.
func (l *Log) admit(k kind, rule string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	key := streamKey{rule, k}
	s := l.streams[key]
	if s == nil {
		if len(l.streams) >= maxStreams*len(messages) {
			key.rule = counts.Other
			s = l.streams[key]
		}
		if s == nil {
			s = l.begin(key)
		}
	}
	if s.lines < l.burst() {
		s.lines++
		return true
	}
	s.omitted++
	return false
}

// begin starts a period. l.mu is held.
func (l *Log) begin(key streamKey) *stream {
	if l.streams == nil {
		l.streams = make(map[streamKey]*stream)
	}
	key.rule = strings.Clone(key.rule)
	s := new(stream)
	s.end = time.AfterFunc(l.every(), func() {
		if l.finish(key, s) {
			defer l.ending.Done()
			l.writeOmitted(key, s)
		}
	})
	l.streams[key] = s
	return s
}

// finish ends the period of s, and reports whether it did. The caller then writes the number
// of lines left out, and ends l.ending.
func (l *Log) finish(key streamKey, s *stream) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams[key] != s {
		return false // Close has ended it
	}
	delete(l.streams, key)
	l.ending.Add(1)
	return true
}

// writeOmitted writes the number of lines that were left out in the period of s, which has
// ended. l.mu is not held: a handler may use what l observes.
func (l *Log) writeOmitted(key streamKey, s *stream) {
	if s.omitted > 0 {
		l.logger().LogAttrs(context.Background(), levels[key.kind], "throttler: more of the same",
			slog.String("rule", key.rule), slog.String("what", messages[key.kind]), slog.Int("lines", s.omitted))
	}
}

// Close ends all periods and writes the numbers of lines left out. After it,
// Observe writes nothing.
func (l *Log) Close() {
	for key, s := range l.close() {
		s.end.Stop()
		l.writeOmitted(key, s)
	}
	l.ending.Wait()
}

// close closes l, and returns the periods that have not ended yet.
func (l *Log) close() map[streamKey]*stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	streams := l.streams
	if l.outage != nil {
		l.outage.check.Stop()
	}
	l.streams, l.outage, l.closed = nil, nil, true
	return streams
}

func (l *Log) logger() *slog.Logger {
	if l.Logger != nil {
		return l.Logger
	}
	return slog.Default()
}

func (l *Log) every() time.Duration {
	if l.Every > 0 {
		return l.Every
	}
	return defaultEvery
}

func (l *Log) burst() int {
	if l.Burst > 0 {
		return l.Burst
	}
	return defaultBurst
}
