package pool

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/bradfitz/gomemcache/memcache"
)

// maxLine is the longest line of an answer: that of a value has a key of 250 bytes
// and three numbers, and the text of an error is for people to read.
const maxLine = 2048

// A status is how a server answered a write.
type status uint8

const (
	unanswered status = iota
	stored            // or deleted
	notStored
	exists
	notFound
	complained
)

// err returns what memcache.Client returns for s.
func (s status) err() error {
	switch s {
	case notStored:
		return memcache.ErrNotStored
	case exists:
		return memcache.ErrCASConflict
	case notFound:
		return memcache.ErrCacheMiss
	}
	return nil
}

// A reply is as much of the answer to one request as has been read.
type reply struct {
	status    status
	found     *memcache.Item
	read      bool  // all of the answer to a read, also that there is no item
	complaint error // the error that the server reported, if any
}

// uncas reports whether the record that found verb from storing has no token, so
// that no other write can replace it.
func (r *reply) uncas(v verb) bool {
	return v == add && r.status == notStored && r.found != nil && r.found.CasID == 0
}

// maxValue is the size of the largest value that is read: memcached's own, by default. Records
// are far smaller.
const maxValue = 1 << 20

// A tooLarge is the size of a value that is not read. The rest of its answer makes sense.
type tooLarge uint64

func (e tooLarge) Error() string {
	return fmt.Sprintf("the answer has a value of %d bytes, want at most %d", uint64(e), maxValue)
}

// isNonsense reports whether err, of an answer, means that the answer makes no sense.
// Then what has been read of it may belong to another one.
func isNonsense(err error) bool {
	if err == nil {
		return false // the usual case: what follows allocates
	}
	var large tooLarge
	return !isComplaint(err) && !errors.As(err, &large)
}

// errGarbage is wrapped in the error of an answer that is not memcached's.
func errGarbage(line []byte) error {
	if len(line) > 80 {
		line = line[:80]
	}
	return fmt.Errorf("not an answer of memcached: %q", line)
}

// parse reads what b has of the answer to r and, if r is the first of a group, to the
// others of that. It returns how many bytes are read, which are not needed any more, and
// whether the answer is complete. What is incomplete is to be given again, with more. After
// an error the connection is out of step with its requests; if done is true even so, r has
// its answer.
func (r *request) parse(b []byte) (n int, done bool, err error) {
	if r.group != nil {
		return r.group.parse(b)
	}
	alone := group{members: []*request{r}}
	return alone.parse(b)
}

// cutLine returns the first line of b, without its end, and its size with it.
func cutLine(b []byte) (line []byte, size int, ok bool) {
	i := bytes.IndexByte(b[:min(len(b), maxLine)], '\n')
	if i < 0 {
		return nil, 0, false
	}
	return bytes.TrimSuffix(b[:i], []byte("\r")), i + 1, true
}

func isError(line []byte) bool {
	return bytes.HasPrefix(line, []byte("SERVER_ERROR")) ||
		bytes.HasPrefix(line, []byte("CLIENT_ERROR")) ||
		bytes.HasPrefix(line, []byte("ERROR"))
}

// fatal returns the error that the server reported in line, unless the conversation goes on:
// after a SERVER_ERROR it does. What else the server did not understand, it may have taken
// for another request.
func fatal(line []byte) error {
	if bytes.HasPrefix(line, []byte("SERVER_ERROR")) {
		return nil
	}
	return complaint(line)
}

// refusedBy notes the error that the server reported instead of writing. A proxy also says
// SERVER_ERROR if the server behind it did not answer in time.
func (r *request) refusedBy(line []byte) (done bool, err error) {
	r.reply.complaint = complaint(line)
	if err := fatal(line); err != nil {
		return false, err
	}
	r.reply.status = complained
	// Behind a proxy, the server may carry it out later.
	r.maybe = r.maybe || r.step == onRead && !isRefusal(line)
	return !r.reads || r.step == metaSet, nil
}

// isRefusal reports whether line is memcached's own refusal of an item.
func isRefusal(line []byte) bool {
	return bytes.HasPrefix(line, []byte("SERVER_ERROR out of memory")) ||
		bytes.HasPrefix(line, []byte("SERVER_ERROR object too large"))
}

// wrote notes the answer to a write.
func (r *request) wrote(line []byte) (done bool, err error) {
	if isError(line) {
		return r.refusedBy(line)
	}
	if r.step == metaSet {
		err = r.metaWritten(line)
		return err == nil, err
	}
	switch string(line) {
	case "STORED", "DELETED":
		r.reply.status = stored
	case "NOT_STORED":
		r.reply.status = notStored
	case "EXISTS":
		r.reply.status = exists
	case "NOT_FOUND":
		r.reply.status = notFound
	default:
		return false, errGarbage(line)
	}
	return !r.reads, nil
}

// parseValue parses "VALUE key flags size token", of which a server without CAS may
// leave out the token.
func parseValue(line []byte) (key []byte, item memcache.Item, size uint64, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte("VALUE "))
	if !ok {
		return nil, item, 0, false
	}
	key, rest, _ = bytes.Cut(rest, []byte(" "))
	flags, rest, _ := bytes.Cut(rest, []byte(" "))
	length, token, hasToken := bytes.Cut(rest, []byte(" "))
	f, ok1 := parseUint(flags)
	size, ok2 := parseUint(length)
	ok3 := true
	if hasToken {
		item.CasID, ok3 = parseUint(token)
	}
	item.Flags = uint32(f)
	return key, item, size, len(key) > 0 && ok1 && ok2 && ok3 && f>>32 == 0
}

// parseUint parses digits alone.
func parseUint(b []byte) (n uint64, ok bool) {
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 || n > (1<<64-1-d)/10 {
			return 0, false
		}
		n = 10*n + d
	}
	return n, true
}

// find notes the item of the answer, with a copy of its data.
func (r *request) find(item memcache.Item, data []byte) error {
	if r.reply.found != nil {
		return errors.New("more items than were asked for")
	}
	item.Key = r.key
	r.reply.found = copied(item, data)
	return nil
}

// copied returns item with a copy of data. Records have up to 50 hits, most of them, and many
// only a few.
func copied(item memcache.Item, data []byte) *memcache.Item {
	switch {
	case len(data) <= 64:
		small := &struct {
			memcache.Item
			data [64]byte
		}{Item: item}
		small.Value = append(small.data[:0:len(data)], data...)
		return &small.Item
	case len(data) <= 168:
		medium := &struct {
			memcache.Item
			data [168]byte
		}{Item: item}
		medium.Value = append(medium.data[:0:len(data)], data...)
		return &medium.Item
	default:
		large := item // item itself must not escape from the usual cases
		large.Value = bytes.Clone(data)
		return &large
	}
}
