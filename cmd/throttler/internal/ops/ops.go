// Package ops implements the operator's commands: show what is stored for a
// value, ban it, lift a ban, list what is blocked, show the state of the
// servers, and try rules on a log.
package ops

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/adaptivethrottler/throttler/internal/memcached"
)

// An Operator carries out an operator's commands.
type Operator struct {
	Servers  []string       // of memcached
	Store    string         // URL of Redis or Valkey, instead of Servers
	Rules    *rulefile.File // for the limits; may be nil
	User     string         // of a memcached with -Y
	Password string
	JSON     bool      // print JSON, not tables
	Out      io.Writer // for answers
	Progress io.Writer // for the progress bar; nil: none
}

// A UsageError says what is wrong in a command line.
type UsageError string

func (e UsageError) Error() string { return string(e) }

const errNoServers = UsageError("no servers: give -servers or -store, set THROTTLER_SERVERS or THROTTLER_STORE, or name them in a rule file")

// A Target is one value of a condition.
type Target struct{ Condition, Value string }

// ParseTargets parses arguments like "ip=203.0.113.7". The error is a [UsageError].
func ParseTargets(args []string) ([]Target, error) {
	if len(args) == 0 {
		return nil, UsageError("no values: give condition=value, as in ip=203.0.113.7")
	}
	targets := make([]Target, len(args))
	for i, arg := range args {
		condition, value, ok := strings.Cut(arg, "=")
		if !ok || condition == "" {
			return nil, UsageError(fmt.Sprintf("%q: want condition=value, as in ip=203.0.113.7", arg))
		}
		targets[i] = Target{condition, value}
	}
	return targets, nil
}

// dialer connects to servers beside the pool.
func (o *Operator) dialer() memcached.Dialer {
	return memcached.Dialer{User: o.User, Password: o.Password}
}

// rule returns a rule with a target. Its limits do not matter.
func rule(identifier string, t Target) throttler.Rule {
	return throttler.Rule{Identifier: identifier, Either: []throttler.Condition{
		{Name: t.Condition, Value: t.Value, Max: 1, TTL: time.Minute},
	}}
}

// print writes answer as JSON, or else the table that rows writes, with columns
// separated by tabs.
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

// printable returns a value as one word of a table. It quotes control
// characters: a terminal obeys them, and values come from attackers.
func printable(s string) string {
	quoted := fmt.Sprintf("%+q", s)
	if s == "" || strings.ContainsAny(s, " \t") || quoted != `"`+s+`"` {
		return quoted
	}
	return s
}

// in returns the time until t.
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
