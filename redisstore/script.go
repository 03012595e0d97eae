package redisstore

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"

	"github.com/redis/rueidis"
)

// The scripts take three arguments for each key: the write number that is expected, eight
// zero bytes if none is; the new value; and its expiry. Without an expiry the record is
// only read. An expiry of 0 deletes it. The answer for a key is 1 if the value was
// written, the value that was found if not, or an error. That of a delete is how many
// keys there were.
var (
	// one is for a single key.
	one = newScript(`if ARGV[3] == '0' then return redis.call('DEL', KEYS[1]) end
local v, n = redis.call('GET', KEYS[1]), '\0\0\0\0\0\0\0\0'
if v and #v > 7 then n = string.sub(v, 1, 8) end
if n ~= ARGV[1] then return v end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`)

	// many answers an array. An error of one key is none of the others.
	many = newScript(`local call, sub, none, r = redis.pcall, string.sub, '\0\0\0\0\0\0\0\0', {}
for i = 1, #KEYS do
  local key, px = KEYS[i], ARGV[3*i]
  if px == '0' then
    r[i] = call('DEL', key)
  else
    local v = call('GET', key)
    r[i] = v
    if px ~= '' and (not v or type(v) == 'string') then
      local n = none
      if v and #v > 7 then n = sub(v, 1, 8) end
      if n == ARGV[3*i-2] then
        v = call('SET', key, ARGV[3*i-1], 'PX', px)
        r[i] = v.err and v or 1
      end
    end
  end
end
return r`)
)

// A luaScript is a script with its name on a server.
type luaScript struct{ text, sha string }

func newScript(text string) luaScript {
	sum := sha1.Sum([]byte(text))
	return luaScript{text, hex.EncodeToString(sum[:])}
}

// ask sends a bundle in one round trip, and gives each request its answer or an error.
// If the server does not know the script yet, it takes another round trip.
func ask(ctx context.Context, c rueidis.Client, bundle []*request) {
	message, err := c.Do(ctx, command(c, bundle, byName)).ToMessage()
	if isNoScript(err) {
		message, err = c.Do(ctx, command(c, bundle, byText)).ToMessage()
	}
	if len(bundle) == 1 {
		bundle[0].answered(message, err)
		return
	}
	var answers []rueidis.RedisMessage
	if err == nil {
		answers, err = message.ToArray()
	}
	if err == nil && len(answers) != len(bundle) {
		err = errAnswers
	}
	for i, r := range bundle {
		if err != nil {
			r.answered(message, err)
		} else {
			r.answered(answers[i], answers[i].Error())
		}
	}
}

var errAnswers = errors.New("the script returned another number of answers")

// askEach sends each request of a bundle by itself, all at once, to one node of a
// Cluster: its keys are not in one slot. What another node has by now goes through c,
// which follows it there. askEach reports whether there was any.
func askEach(ctx context.Context, c, node rueidis.Client, bundle []*request) (moved bool) {
	elsewhere, unknown := askMulti(ctx, node, bundle, byName)
	if len(elsewhere) > 0 {
		_, more := askMulti(ctx, c, elsewhere, byName)
		unknown = append(unknown, more...)
	}
	if len(unknown) > 0 {
		askMulti(ctx, c, unknown, byText)
	}
	return len(elsewhere) > 0
}

// askMulti returns the requests that another node has, and those whose server does not
// know the script.
func askMulti(ctx context.Context, c rueidis.Client, bundle []*request, how naming) (elsewhere, unknown []*request) {
	commands := make([]rueidis.Completed, len(bundle))
	for i := range bundle {
		commands[i] = command(c, bundle[i:i+1], how)
	}
	for i, result := range c.DoMulti(ctx, commands...) {
		r := bundle[i]
		message, err := result.ToMessage()
		if reported, ok := rueidis.IsRedisErr(err); ok {
			_, moved := reported.IsMoved()
			_, asked := reported.IsAsk()
			switch {
			case moved || asked:
				elsewhere = append(elsewhere, r)
			case reported.IsNoScript():
				unknown = append(unknown, r)
			}
		}
		r.answered(message, err)
	}
	return elsewhere, unknown
}

// answered notes the answer to r.
func (r *request) answered(message rueidis.RedisMessage, err error) {
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	r.answer, r.err = message, err
}

func isNoScript(err error) bool {
	reported, ok := rueidis.IsRedisErr(err)
	return ok && reported.IsNoScript()
}

// A naming is how a command says which script is meant.
type naming bool

const (
	byName naming = false
	byText naming = true
)

// command returns the command of a bundle. What only reads needs no script.
func command(c rueidis.Client, bundle []*request, how naming) rueidis.Completed {
	if len(bundle) == 1 {
		return single(c, bundle[0], how)
	}
	keys, writes := make([]string, len(bundle)), false
	for i, r := range bundle {
		keys[i] = r.key
		writes = writes || r.writes()
	}
	if !writes {
		return c.B().Mget().Key(keys...).Build()
	}
	arguments := make([]string, 0, 3*len(bundle))
	for _, r := range bundle {
		old, value, expiry := r.arguments()
		arguments = append(arguments, old, value, expiry)
	}
	if how == byText {
		return c.B().Eval().Script(many.text).Numkeys(int64(len(keys))).Key(keys...).Arg(arguments...).Build()
	}
	return c.B().Evalsha().Sha1(many.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(arguments...).Build()
}

// single returns the command of one request.
func single(c rueidis.Client, r *request, how naming) rueidis.Completed {
	if !r.writes() {
		return c.B().Get().Key(r.key).Build()
	}
	old, value, expiry := r.arguments()
	if how == byText {
		return c.B().Eval().Script(one.text).Numkeys(1).Key(r.key).Arg(old, value, expiry).Build()
	}
	return c.B().Evalsha().Sha1(one.sha).Numkeys(1).Key(r.key).Arg(old, value, expiry).Build()
}
