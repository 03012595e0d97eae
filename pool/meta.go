package pool

import (
	"bytes"
	"strconv"
	"sync/atomic"
)

// A meta set, of memcached 1.6, answers with the token of what it has stored. So a
// record that was written need not be read back: the server has one command less to
// carry out, and its answer has 12 bytes instead of the record.
//
// But a meta set that is refused brings no record, and reading it takes another round
// trip. So exchanges write by classic commands until nearly all of a connection's writes
// are stored, and again as soon as more than a few are refused, as where several
// processes share values.
//
// A meta set for which memcached has no memory deletes the record (1.6.18), which a
// classic command leaves. After the first, the server gets no more of them.

// metas are what a connection knows of meta sets. The zero value has all to learn.
type metas struct {
	trust atomic.Int32 // how many of fullTrust writes were stored, by an average that forgets
	asked bool         // the server; the writer's
	known atomic.Bool  // the server answers them with a token
}

const (
	fullTrust   = 1 << 16
	enoughTrust = fullTrust - fullTrust/10
	forgetting  = 256 // each write takes the average nearer to what came of it, by one part of so many
)

// note notes how the write of r has ended. The reader alone calls it.
func (m *metas) note(r *request) {
	trust := m.trust.Load()
	switch r.reply.status {
	case stored:
		m.trust.Store(trust + (fullTrust-trust)/forgetting)
	case notStored, exists, notFound:
		m.trust.Store(trust - trust/forgetting)
	case complained:
		if (r.step == metaSet || r.step == readsAfterMeta) && isRefusal([]byte(r.reply.complaint.Error())) {
			r.link.server.noMetaSets.Store(true)
		}
	}
}

// choose chooses how r, whose item is proposed, is written.
func (m *metas) choose(r *request) {
	r.asks = nil // of an earlier connection
	switch {
	case r.verb == none || m.trust.Load() < enoughTrust || r.link.server.noMetaSets.Load():
	case m.known.Load():
		r.step = metaSet
	case !m.asked:
		m.asked = true
		r.asks = &m.known
	}
}

// question is answered by a token if the server's meta sets are. Its item expires at
// once. A server that does not know meta sets may answer both of the first two lines, so
// the version shows where the answers end.
const question = "ms " + probeKey + " 0 T-1 c\r\n\r\nversion\r\n"

// told notes one line that answers r's question. After the last one it is asked no more.
func (r *request) told(line []byte) error {
	switch code, rest, _ := bytes.Cut(line, []byte(" ")); {
	case string(code) == "HD":
		_, ok := parseToken(rest)
		r.asks.Store(ok)
	case isMemcached(line):
		r.asks = nil
	case !isError(line):
		return errGarbage(line)
	}
	return nil
}

// appendMetaSet appends the command that r writes with to b, as a meta set.
func (r *request) appendMetaSet(b []byte) []byte {
	b = append(append(b, "ms "...), r.key...)
	b = strconv.AppendInt(append(b, ' '), int64(len(r.item.Value)), 10)
	b = strconv.AppendUint(append(b, " c F"...), uint64(r.item.Flags), 10)
	b = strconv.AppendInt(append(b, " T"...), int64(r.item.Expiration), 10)
	if r.verb == cas {
		b = strconv.AppendUint(append(b, " C"...), r.item.CasID, 10)
	} else {
		b = append(b, " ME"...) // as add does
	}
	b = append(b, "\r\n"...)
	return append(append(b, r.item.Value...), "\r\n"...)
}

// metaWritten notes the answer to a meta set. The item that was proposed becomes the one
// that is found.
func (r *request) metaWritten(line []byte) error {
	code, rest, _ := bytes.Cut(line, []byte(" "))
	switch string(code) {
	case "HD":
		token, ok := parseToken(rest)
		if !ok {
			return errGarbage(line)
		}
		r.reply.status, r.reply.read = stored, true
		r.item.Key, r.item.Expiration, r.item.CasID = r.key, 0, token
		r.reply.found = r.item
	case "NS":
		r.reply.status = notStored
	case "EX":
		r.reply.status = exists
	case "NF":
		r.reply.status = notFound
	default:
		return errGarbage(line)
	}
	return nil
}

// parseToken parses the flag of a token. A server that gives none says c0.
func parseToken(flag []byte) (token uint64, ok bool) {
	digits, ok := bytes.CutPrefix(flag, []byte("c"))
	token, isNumber := parseUint(digits)
	return token, ok && isNumber && token != 0
}

// readsAfterAll makes r, a meta set that stored nothing, a request that reads the record,
// and reports whether it was one.
func (r *request) readsAfterAll() bool {
	if r.step != metaSet || r.reply.read || r.reply.status == unanswered {
		return false
	}
	r.step, r.verb = readsAfterMeta, none
	return true
}
