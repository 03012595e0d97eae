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

// A script is told for each key which write number is expected, eight zero bytes if none
// is, the new value, and its expiry in milliseconds, of which 0 deletes the record. The
// answer for a key is 1 if the value was written, the value that was found if not, or an
// error. That of a delete is how many keys there were.
var (
	// one is for a single key. Its arguments are the number, the value and the expiry.
	one = newScript(`if ARGV[3] == '0' then return redis.call('DEL', KEYS[1]) end
local v, n = redis.call('GET', KEYS[1]), '\0\0\0\0\0\0\0\0'
if v and #v > 7 then n = string.sub(v, 1, 8) end
if n ~= ARGV[1] then return v end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`)

	// many answers an array, or the number of keys if all values were written. Its first
	// argument is the expiry of most keys. For each key two follow, the number and the
	// value. If its expiry is another one, that comes behind the number. Without a number
	// the record is only read.
	//
	// An error of one key is none of the others. It reads all keys at once, so it keeps
	// what it has written itself: a key may come twice. To MGET a key of another type is
	// none, but NX finds it, and GET then says what it is.
	many = newScript(`local keys, args, call, sub, none = KEYS, ARGV, redis.pcall, string.sub, '\0\0\0\0\0\0\0\0'
local r, new, all = redis.call('MGET', unpack(keys)), {}, true
for i = 1, #keys do
  local key, old, px, v, ok = keys[i], args[2*i], args[1], r[i], nil
  if new[key] ~= nil then v = new[key] end
  if #old > 8 then old, px = sub(old, 1, 8), sub(old, 9) end
  if px == '0' then
    v, new[key] = call('DEL', key), false
  elseif old == (v and #v > 7 and sub(v, 1, 8) or none) then
    local value = args[2*i+1]
    if v then
      ok = call('SET', key, value, 'PX', px)
    else
      ok = call('SET', key, value, 'PX', px, 'NX')
    end
    if ok and ok.ok then
      v, new[key] = 1, value
    else
      v, ok = ok or call('GET', key), nil
    end
  end
  all = all and ok
  r[i] = v
end
return all and #keys or r`)
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
	if err == nil && message.IsInt64() {
		answer, _ := message.AsInt64()
		if err = errAnswers; answer == int64(len(bundle)) && writesAll(bundle) {
			err = nil
		}
		for _, r := range bundle {
			r.answered(message, err)
		}
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
	for i, r := range bundle {
		if i == 0 {
			built = built.Keys(r.key) // computes the slot, for a Cluster: its bundles are of one
		} else {
			built = built.Args(r.key)
		}
	}
	if writes && len(bundle) == 1 {
		condition, value, _ := bundle[0].arguments(make([]byte, 0, textSize(bundle)), none)
		built = built.Args(condition[:numberSize], value, condition[numberSize:])
	} else if writes {
		common := commonExpiry(bundle)
		built = built.Args(strconv.FormatInt(common, 10))
		text := make([]byte, 0, textSize(bundle))
		for _, r := range bundle {
			var condition, value string
			condition, value, text = r.arguments(text, common)
			built = built.Args(condition, value)
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

// writesAll reports whether each request of a bundle has an item to be written.
func writesAll(bundle []*request) bool {
	for _, r := range bundle {
		if r.item == nil {
			return false
		}
	}
	return true
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

// none is no expiry.
const none = -1

// commonExpiry returns the expiry of the first item in a bundle, which is most often that of
// all: a limit has one TTL.
func commonExpiry(bundle []*request) int64 {
	for _, r := range bundle {
		if r.item != nil {
			return milliseconds(r.item.Expiration)
		}
	}
	return none
}

// deletion is the condition of a request that deletes.
const deletion = "\x00\x00\x00\x00\x00\x00\x00\x000"

// arguments returns those of the script for r: the number that is expected, with the expiry
// in milliseconds behind it unless that is common, and the new value. They are parts of
// text, which has the room and is returned with them: to allocate each would take longer.
func (r *request) arguments(text []byte, common int64) (condition, value string, after []byte) {
	switch {
	case r.deletes:
		return deletion, "", text
	case r.item == nil:
		return "", "", text
	}
	begin := len(text)
	text = binary.LittleEndian.AppendUint64(text, r.item.CasID)
	if expiry := milliseconds(r.item.Expiration); expiry != common {
		text = strconv.AppendInt(text, expiry, 10)
	}
	middle := len(text)
	text = binary.LittleEndian.AppendUint64(text, r.number)
	text = append(text, r.item.Value...)
	return rueidis.BinaryString(text[begin:middle]), rueidis.BinaryString(text[middle:]), text
}
