package httpthrottle

import (
	"context"
	"net/http"
	"time"

	"github.com/adaptivethrottler/throttler"
)

// learn learns from the answer to a request that was sent then, by those decisions. If the
// server has refused it for a limit, the result is the time for which it wants no requests.
func (t *Transport) learn(ctx context.Context, l *limited, allowed []throttler.Decision, response *http.Response, sent time.Time) time.Duration {
	said := readAnswer(response, time.Now())
	m := t.memory.of(l.key)
	ctx = context.WithoutCancel(ctx) // what was learned is for others too
	believed := t.learnQuotas(ctx, l, m, &said)
	if !said.refused() {
		m.accepted()
		if said.exhausted() > 0 {
			t.closeUncounted(ctx, l, m, said.quotas)
		}
		return 0
	}
	t.cancel(ctx, allowed)
	shortest := l.shortest()
	pause := min(said.pause(), t.maxPause())
	told := pause > 0
	if told {
		pause += t.margin(pause)
	} else {
		base := shortestBack
		if shortest != nil {
			base = max(base, shortest.TTL+t.margin(shortest.TTL)) // so that what is counted next is the server's limit
		}
		pause = m.backOff(sent, base, t.maxPause())
	}
	t.close(ctx, l, m, pause)
	if said.status == http.StatusTooManyRequests && !believed && shortest != nil && !(told && pause > shortest.TTL+time.Second) {
		t.estimate(ctx, l, m, shortest)
	}
	return pause
}

// learnQuotas learns the limits that the server tells. It reports whether they explain a
// refusal, because nothing is left of one.
func (t *Transport) learnQuotas(ctx context.Context, l *limited, m *remembered, said *answer) (believed bool) {
	for _, q := range said.quotas {
		learned, _ := m.known()
		p, ok := l.subject(q, learned, time.Now())
		if !ok {
			continue
		}
		believed = believed || q.remaining == 0
		lesson := newLesson(q.limit, p.ttl, time.Now())
		lesson.Round, lesson.Steady = p.round, q.steady
		added := t.hear(ctx, l, m, p.name, lesson)
		if added && l.condition(p.name) == nil {
			hits := 1 // this request
			if q.remaining >= 0 {
				hits = q.limit - q.remaining
			}
			t.count(ctx, l, m, p.name, hits)
		}
	}
	return believed
}

// count counts the hits that the server has counted in a condition that is new.
func (t *Transport) count(ctx context.Context, l *limited, m *remembered, name string, hits int) {
	learned, _ := m.known()
	rule := l.serverRule(learned, t.margin, time.Now())
	for _, c := range rule.Either {
		if c.Name == name && hits > 0 {
			c.Cost = min(hits, c.Max)
			rule.Either = []throttler.Condition{c}
			t.Throttler.Authorize(ctx, rule) // it is valid; if the backend fails, answers go on telling
		}
	}
}

// closeUncounted pauses until the quotas are reset of which nothing is left, unless that is
// because of the requests that were counted here: then the rule waits as long as it must, and
// often not as long as the server says in whole seconds.
func (t *Transport) closeUncounted(ctx context.Context, l *limited, m *remembered, quotas []quota) {
	outcomes := t.peek(ctx, l, m)
	learned, _ := m.known()
	for _, q := range quotas {
		if q.remaining == 0 && q.reset > 0 && !l.counted(outcomes, q, learned) {
			pause := min(q.reset, t.maxPause())
			t.close(ctx, l, m, pause+t.margin(pause))
		}
	}
}

// counted reports whether the condition of q is full by the outcomes.
func (l *limited) counted(outcomes []throttler.Outcome, q quota, learned lessons) bool {
	p, found := l.subject(q, learned, time.Now())
	for i := range outcomes {
		o := &outcomes[i]
		if o.Blocked && o.Name != ClosedCondition && (found && o.Name == p.name || !found && o.Limit == q.limit) {
			return true
		}
	}
	return false
}

// peek returns the outcomes of all conditions of l.
func (t *Transport) peek(ctx context.Context, l *limited, m *remembered) (all []throttler.Outcome) {
	learned, _ := m.known()
	for _, rule := range l.rules(learned, t.margin, time.Now()) {
		d, _ := t.Throttler.Peek(ctx, rule) // the rule has been asked before
		all = append(all, d.Outcomes...)
	}
	return all
}

// estimate takes the requests in the window of c, one of the rule, that the server did not
// refuse for its limit. The last of several refusals at the same moment sees the exact number.
func (t *Transport) estimate(ctx context.Context, l *limited, m *remembered, c *throttler.Condition) {
	one := *c
	one.TTL += t.margin(c.TTL)
	d, err := t.Throttler.Peek(ctx, throttler.Rule{Identifier: l.rule.Identifier, Either: []throttler.Condition{one}})
	if err != nil || d.Err != nil || d.Status == throttler.Blocked {
		return
	}
	if taken := one.Max - d.Outcomes[0].Remaining - 1; taken > 0 {
		lesson := newLesson(taken, c.TTL, time.Now())
		lesson.Guess = true
		t.hear(ctx, l, m, c.Name, lesson)
	}
}

// close bans all requests of l for that long, in all processes if the backend allows.
func (t *Transport) close(ctx context.Context, l *limited, m *remembered, pause time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	rule := throttler.Rule{Identifier: l.rule.Identifier, Either: []throttler.Condition{l.closed()}}
	err := t.Throttler.Ban(ctx, rule, pause)
	m.pause(pause, err == nil)
}

// hear learns one limit, for all processes. added is true if no limit of this name was known.
func (t *Transport) hear(ctx context.Context, l *limited, m *remembered, name string, new lesson) (added bool) {
	local, _ := m.known()
	old, known := local[name]
	if c := l.condition(name); c != nil && new.Max >= c.Max && (!known || old.Max >= c.Max) {
		return false // the rule is as strict
	}
	next, changed := local.hear(name, new, new.Heard)
	for range maxLostWrites {
		if !changed {
			break
		}
		stored, item, err := readLessons(ctx, t.Throttler.Client(), l.key)
		if err != nil {
			break // this process learns alone
		}
		both := stored.latest(local)
		_, known = both[name]
		if next, changed = both.hear(name, new, new.Heard); !changed {
			break
		}
		if won, err := writeLessons(ctx, t.Throttler.Client(), l.key, item, next); won || err != nil {
			break
		}
	}
	m.know(next)
	return changed && !known
}

// refresh reads what others have learned, unless that was read since then. If another call
// reads it, refresh waits for that only if wait is set.
func (t *Transport) refresh(ctx context.Context, m *remembered, l *limited, since time.Time, wait bool) {
	reading, leads := m.startReading(since)
	if !leads {
		if wait && reading != nil {
			select {
			case <-reading:
			case <-ctx.Done():
			}
		}
		return
	}
	defer m.endReading()
	stored, _, err := readLessons(ctx, t.Throttler.Client(), l.key)
	if err == nil {
		local, _ := m.known()
		m.know(stored.latest(local))
	}
}
