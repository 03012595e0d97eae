package redisstore

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/rueidis"
)

// A form is how requests are put to a server.
type form uint8

const (
	byName form = iota // the script by its name, or GET and MGET if nothing is to be written
	byText             // the script itself, for a server that does not know it yet
	bySet              // SET with NX and GET, for one record that should not be there yet
)

// A group is requests that go in one command.
type group struct {
	form     form
	requests []*request
}

// groups returns the groups of a bundle, whose order it changes: records that are new by
// themselves, and the others together. If they are for a Cluster, where keys of one slot
// are rare, each is by itself.
func (s *Store) groups(bundle []*request, cluster bool) []group {
	sets := s.sets.Load() == setsWork
	others := 0
	for i, r := range bundle {
		if !cluster && !(sets && r.isNew()) {
			bundle[others], bundle[i] = r, bundle[others]
			others++
		}
	}
	groups := make([]group, 0, len(bundle)-others+1)
	if others > 0 {
		groups = append(groups, group{byName, bundle[:others]})
	}
	for i := others; i < len(bundle); i++ {
		g := group{byName, bundle[i : i+1]}
		if sets && bundle[i].isNew() {
			g.form = bySet
		}
		groups = append(groups, g)
	}
	return groups
}

// What is known of SET with NX and GET, which Redis has since 7.0. It takes the server half
// the time of a script. It is used once a script has worked: a user who may use none is to
// hear of it at once.
const (
	setsUntried uint32 = iota
	setsWork
	setsFail
)

// ask sends groups of requests in one round trip, and gives each request its answer or an
// error. If the server does not know the script, or refuses SET with NX and GET, it takes
// another round trip. ask returns what another node of the Cluster has by now. own is that of
// command.
func (s *Store) ask(ctx context.Context, c rueidis.Client, groups []group, own bool) (elsewhere []*request) {
	for len(groups) > 0 {
		var again []group
		for i, result := range do(ctx, c, groups, own) {
			g := groups[i]
			message, err := result.ToMessage()
			g.answered(message, err)
			reported, ok := rueidis.IsRedisErr(err)
			switch {
			case err == nil && g.form == bySet && g.isForeign():
				again = append(again, group{byName, g.requests})
			case g.requests[0].stored && s.sets.Load() == setsUntried:
				s.sets.Store(setsWork)
			case !ok:
			case isElsewhere(reported):
				elsewhere = append(elsewhere, g.requests...)
			case reported.IsNoScript() && g.form == byName:
				again = append(again, group{byText, g.requests})
			case g.form == bySet: // a server without memory writes nothing, but the script reads
				if strings.HasPrefix(reported.Error(), "syntax error") {
					s.sets.Store(setsFail)
				}
				again = append(again, group{byName, g.requests})
			}
		}
		groups = again
	}
	return elsewhere
}

func isElsewhere(reported *rueidis.RedisError) bool {
	_, moved := reported.IsMoved()
	_, asked := reported.IsAsk()
	return moved || asked
}

// do sends each group as a command, all in one round trip.
func do(ctx context.Context, c rueidis.Client, groups []group, own bool) []rueidis.RedisResult {
	if len(groups) == 1 {
		return []rueidis.RedisResult{c.Do(ctx, groups[0].command(c, own))}
	}
	commands := make([]rueidis.Completed, len(groups))
	for i, g := range groups {
		commands[i] = g.command(c, own)
	}
	return c.DoMulti(ctx, commands...)
}

// isForeign reports whether a value was found that is no record, and is to be replaced.
func (g group) isForeign() bool { return !g.requests[0].stored && g.requests[0].found() == nil }

// answered notes the answer to each request.
func (g group) answered(message rueidis.RedisMessage, err error) {
	if len(g.requests) == 1 {
		stored := message.IsInt64()
		if g.form == bySet {
			stored = message.IsNil()
		}
		g.requests[0].answered(message, stored, err)
		return
	}
	all := err == nil && message.IsInt64()
	var answers []rueidis.RedisMessage
	switch {
	case all:
		if n, _ := message.AsInt64(); n != int64(len(g.requests)) || !writesAll(g.requests) {
			err = errAnswers
		}
	case err == nil:
		if answers, err = message.ToArray(); err == nil && len(answers) != len(g.requests) {
			err = errAnswers
		}
	}
	for i, r := range g.requests {
		if err != nil || all {
			r.answered(message, all, err)
		} else {
			r.answered(answers[i], answers[i].IsInt64(), answers[i].Error())
		}
	}
}

var errAnswers = errors.New("the script returned another number of answers")

// answered notes the answer to r.
func (r *request) answered(message rueidis.RedisMessage, stored bool, err error) {
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	r.answer, r.stored, r.err = message, stored && err == nil && r.writes(), err
}
