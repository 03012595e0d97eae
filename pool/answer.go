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

// A tooLarge is the size of a value that is not read. The rest of its answer makes sense.
type tooLarge struct {
	size uint64
	max  int
}

func (e tooLarge) Error() string {
	return fmt.Sprintf("the answer has a value of %d bytes, want at most %d (MaxValue)", e.size, e.max)
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

// parse reads what b has of the answer to r. It returns how many bytes are read,
// which are not needed any more, and whether the answer is complete. What is
// incomplete is to be given again, with more. After an error the connection is
// out of step with its requests; if done is true even so, r has its answer.
func (r *request) parse(b []byte, maxValue int) (n int, done bool, err error) {
	if r.group != nil {
		return r.group.parse(b, maxValue)
	}
	for {
		line, size, ok := cutLine(b[n:])
		if !ok {
			if len(b)-n > maxLine {
				err = errGarbage(b[n:])
			}
			return n, false, err
		}
		switch {
		case r.asks != nil:
			n += size
			err = r.told(line)
		case isError(line):
			n += size
			done, err = r.complained(line)
		case r.verb != none && r.reply.status == unanswered:
			n += size
			done, err = r.wrote(line)
		case string(line) == "END":
			r.reply.read = true
			return n + size, true, nil
		default:
			length, e := r.value(line, b[n+size:], maxValue)
			if e != nil || length < 0 {
				return n, false, e
			}
			n += size + length
		}
		if done || err != nil {
			return n, done, err
		}
	}
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

// complained notes the error that the server reported instead of a part of the
// answer. After a SERVER_ERROR the conversation goes on; what else it did not
// understand, it may have taken for another request. A proxy also says SERVER_ERROR if
// the server behind it did not answer in time.
func (r *request) complained(line []byte) (done bool, err error) {
	r.reply.complaint = complaint(line)
	if !bytes.HasPrefix(line, []byte("SERVER_ERROR")) {
		return true, r.reply.complaint
	}
	if r.verb != none && r.reply.status == unanswered {
		r.reply.status = complained
		// Behind a proxy, the server may carry it out later.
		r.maybe = r.maybe || r.step == onRead && !isRefusal(line)
		return !r.reads || r.step == metaSet, nil
	}
	return true, nil
}

// isRefusal reports whether line is memcached's own refusal of an item.
func isRefusal(line []byte) bool {
	return bytes.HasPrefix(line, []byte("SERVER_ERROR out of memory")) ||
		bytes.HasPrefix(line, []byte("SERVER_ERROR object too large"))
}

// wrote notes the answer to a write.
func (r *request) wrote(line []byte) (done bool, err error) {
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

// value notes the item that line announces and b begins with. It returns the
// length of its data with their end, or -1 if b has not all of them.
func (r *request) value(line, b []byte, maxValue int) (length int, err error) {
	if !r.reads {
		return 0, errGarbage(line)
	}
	key, item, data, err := cutValue(line, b, maxValue)
	if err != nil {
		return 0, err
	}
	if data == nil {
		return -1, nil
	}
	return len(data) + 2, r.find(key, item, data)
}

// cutValue returns the item that line announces, and its data, with which b
// begins: nil if b has not all of them.
func cutValue(line, b []byte, maxValue int) (key []byte, item memcache.Item, data []byte, err error) {
	key, item, size, ok := parseValue(line)
	if !ok {
		return nil, item, nil, errGarbage(line)
	}
	if size > uint64(maxValue) {
		return key, item, nil, tooLarge{size, maxValue}
	}
	end := int(size) + 2
	if len(b) < end {
		return key, item, nil, nil
	}
	if b[end-2] != '\r' || b[end-1] != '\n' {
		return key, item, nil, errGarbage(line)
	}
	return key, item, b[:size:size], nil
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
func (r *request) find(key []byte, item memcache.Item, data []byte) error {
	if r.key != string(key) {
		return lostError{fmt.Errorf("%w: %q", errOtherKey, key)}
	}
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
