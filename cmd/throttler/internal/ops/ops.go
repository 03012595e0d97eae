// Package ops is what an operator does by hand: look at what is stored for a
// value, ban it, lift a ban, list what is blocked, see how the servers are, and
// try rules on a log.
package ops

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/internal/memcached"
)

// An Operator answers an operator's questions.
type Operator struct {
	Servers  []string       // of memcached
	Rules    *rulefile.File // tell limits, if not nil
	User     string         // of a memcached with -Y
	Password string
	JSON     bool      // for programs rather than people
	Out      io.Writer // answers
	Progress io.Writer // how far it is; nil: nobody looks
}

// ErrNoServers is the error of a command that needs servers and has none.
var ErrNoServers = errors.New("no servers: give -servers, set THROTTLER_SERVERS, or name them in a rule file")

// A Target is one value of a condition.
type Target struct{ Condition, Value string }

// ParseTargets reads arguments like "ip=203.0.113.7".
func ParseTargets(args []string) ([]Target, error) {
	if len(args) == 0 {
		return nil, errors.New("no condition: want condition=value, as in ip=203.0.113.7")
	}
	targets := make([]Target, len(args))
	for i, arg := range args {
		condition, value, ok := strings.Cut(arg, "=")
		if !ok || condition == "" {
			return nil, fmt.Errorf("%q is no condition=value, as in ip=203.0.113.7", arg)
		}
		targets[i] = Target{condition, value}
	}
	return targets, nil
}

// dialer connects to servers beside the pool.
func (o *Operator) dialer() memcached.Dialer {
	return memcached.Dialer{User: o.User, Password: o.Password}
}

// rule returns a rule with the targets. Its limits are not used.
func rule(identifier string, targets []Target) throttler.Rule {
	r := throttler.Rule{Identifier: identifier}
	for _, t := range targets {
		r.Either = append(r.Either, throttler.Condition{Name: t.Condition, Value: t.Value, Max: 1, TTL: time.Minute})
	}
	return r
}

// print writes an answer as JSON, or else as the table that rows writes. Columns
// are separated by tabs.
func (o *Operator) print(answer any, rows func(w io.Writer)) error {
	if o.JSON {
		encoder := json.NewEncoder(o.Out)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(answer)
	}
	w := tabwriter.NewWriter(o.Out, 0, 0, 2, ' ', 0)
	rows(w)
	return w.Flush()
}

// printable returns a value as one word of a table. Values come from attackers,
// and a terminal obeys control characters.
func printable(s string) string {
	quoted := fmt.Sprintf("%+q", s)
	if s == "" || strings.ContainsAny(s, " \t") || quoted != `"`+s+`"` {
		return quoted
	}
	return s
}

// in returns how long it is until t.
func in(t, now time.Time) string {
	d := t.Sub(now)
	switch {
	case d >= time.Hour:
		d = d.Round(time.Minute)
	case d >= time.Second:
		d = d.Round(time.Second)
	default:
		d = d.Round(time.Millisecond)
	}
	text := d.String()
	if d >= time.Hour {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}
