package redisstore

import (
	"context"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strconv"

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

	// many answers an array. An error of one key is none of the others. It reads all
	// keys at once, so it keeps what it has written itself: a key may come twice. To
	// MGET a key of another type is none, but NX finds it, and GET then says what it is.
	many = newScript(`local call, sub, none = redis.pcall, string.sub, '\0\0\0\0\0\0\0\0'
local r, new = redis.call('MGET', unpack(KEYS)), {}
for i = 1, #KEYS do
  local key, px, v, n = KEYS[i], ARGV[3*i], r[i], none
  if new[key] ~= nil then v = new[key] end
  if px == '0' then
    v, new[key] = call('DEL', key), false
  elseif px ~= '' then
    if v and #v > 7 then n = sub(v, 1, 8) end
    if n == ARGV[3*i-2] then
      local value, ok = ARGV[3*i-1], nil
      if v then
        ok = call('SET', key, value, 'PX', px)
      else
        ok = call('SET', key, value, 'PX', px, 'NX')
      end
      if ok and ok.ok then
        v, new[key] = 1, value
      else
        v = ok or call('GET', key)
      end
    end
  end
  r[i] = v
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
	message, err := c.Do(ctx, command(c, bundle, byName, true)).ToMessage()
	if isNoScript(err) {
		message, err = c.Do(ctx, command(c, bundle, byText, true)).ToMessage()
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
// which follows it there. askEach reports whether there was any. Scripts that the node
// does not know go to itself: c may still take another node for the primary.
func askEach(ctx context.Context, c, node rueidis.Client, bundle []*request) (moved bool) {
	elsewhere := askNode(ctx, node, bundle, node != c)
	if len(elsewhere) > 0 {
		askNode(ctx, c, elsewhere, false)
	}
	return len(elsewhere) > 0
}

// askNode is askMulti by name, and by text where the server does not know the script.
func askNode(ctx context.Context, c rueidis.Client, bundle []*request, own bool) (elsewhere []*request) {
	elsewhere, unknown := askMulti(ctx, c, bundle, byName, own)
	if len(unknown) > 0 {
		moved, _ := askMulti(ctx, c, unknown, byText, own)
		elsewhere = append(elsewhere, moved...)
	}
	return elsewhere
}

// askMulti returns the requests that another node has, and those whose server does not
// know the script. own is that of command.
func askMulti(ctx context.Context, c rueidis.Client, bundle []*request, how naming, own bool) (elsewhere, unknown []*request) {
	commands := make([]rueidis.Completed, len(bundle))
	for i := range bundle {
		commands[i] = command(c, bundle[i:i+1], how, own)
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

// command returns the command of a bundle. What only reads needs no script. If it is to be
// sent over a connection of its own, no other goroutine of rueidis is needed for it.
func command(c rueidis.CoreClient, bundle []*request, how naming, own bool) rueidis.Completed {
	script, count, writes := &many, "1", writesAny(bundle)
	if len(bundle) == 1 {
		script = &one
	} else {
		count = strconv.Itoa(len(bundle))
	}
	built := c.B().Arbitrary()
	switch {
	case !writes && len(bundle) == 1:
		built = built.Args("GET")
	case !writes:
		built = built.Args("MGET")
	case how == byText:
		built = built.Args("EVAL", script.text, count)
	default:
		built = built.Args("EVALSHA", script.sha, count)
	}
	for _, r := range bundle {
		built = built.Keys(r.key)
	}
	if writes {
		text := make([]byte, 0, textSize(bundle))
		for _, r := range bundle {
			var old, value, expiry string
			old, value, expiry, text = r.arguments(text)
			built = built.Args(old, value, expiry)
		}
	}
	if own {
		return built.Blocking()
	}
	return built.Build()
}

func writesAny(bundle []*request) bool {
	for _, r := range bundle {
		if r.writes() {
			return true
		}
	}
	return false
}

// maxExpiry is how many digits an expiry may have.
const maxExpiry = 20

// textSize returns how much room the arguments of a bundle take at most.
func textSize(bundle []*request) int {
	size := 0
	for _, r := range bundle {
		if r.item != nil {
			size += 2*numberSize + len(r.item.Value) + maxExpiry
		}
	}
	return size
}

// arguments returns those of the script for r: the number that is expected, the new
// value, and its expiry in milliseconds. They are parts of text, which has the room and is
// returned with them: to allocate each would take longer.
func (r *request) arguments(text []byte) (old, value, expiry string, after []byte) {
	switch {
	case r.deletes:
		return "", "", "0", text
	case r.item == nil:
		return "", "", "", text
	}
	begin := len(text)
	text = binary.LittleEndian.AppendUint64(text, r.item.CasID)
	text = binary.LittleEndian.AppendUint64(text, r.number)
	text = append(text, r.item.Value...)
	end := len(text)
	text = strconv.AppendInt(text, milliseconds(r.item.Expiration), 10)
	all := rueidis.BinaryString(text[begin:])
	return all[:numberSize], all[numberSize : end-begin], all[end-begin:], text
}
