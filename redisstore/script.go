package redisstore

import (
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
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

// command returns the command of a group. What only reads needs no script. If it is to be
// sent over a connection of its own, no other goroutine of rueidis is needed for it.
func (g group) command(c rueidis.CoreClient, own bool) rueidis.Completed {
	script, count, writes := &many, "1", writesAny(g.requests)
	if len(g.requests) == 1 {
		script = &one
	} else {
		count = strconv.Itoa(len(g.requests))
	}
	built := c.B().Arbitrary()
	switch {
	case g.form == bySet:
		built = built.Args("SET")
	case !writes && len(g.requests) == 1:
		built = built.Args("GET")
	case !writes:
		built = built.Args("MGET")
	case g.form == byText:
		built = built.Args("EVAL", script.text, count)
	default:
		built = built.Args("EVALSHA", script.sha, count)
	}
	for i, r := range g.requests {
		if i == 0 {
			built = built.Keys(r.key) // computes the slot, for a Cluster: its groups are of one
		} else {
			built = built.Args(r.key)
		}
	}
	switch {
	case !writes:
	case len(g.requests) == 1:
		condition, value, _ := g.requests[0].arguments(make([]byte, 0, textSize(g.requests)), none)
		number, expiry := condition[:numberSize], condition[numberSize:]
		if g.form == bySet {
			built = built.Args(value, "NX", "GET", "PX", expiry)
		} else {
			built = built.Args(number, value, expiry)
		}
	default:
		common := commonExpiry(g.requests)
		built = built.Args(strconv.FormatInt(common, 10))
		text := make([]byte, 0, textSize(g.requests))
		for _, r := range g.requests {
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
