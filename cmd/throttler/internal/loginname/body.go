package loginname

import (
	"bytes"
	"io"
)

// A Reading reads a body to its end.
type Reading func(io.Reader) error

// chunkSize is how much of a long body is read at a time.
const chunkSize = 32 << 10

// Inspect reads the first bytes of a body, at most limit. It returns the body for the
// server, and whether these bytes are all of it: then they are in first.
//
// The rest of a longer body is read while it is passed on. If it has another name, or
// cannot be read, its Read fails before the server has all of it. Close the body.
func (s *Scan) Inspect(body io.ReadCloser, limit int) (passed *Body, err error) {
	first, err := io.ReadAll(io.LimitReader(body, int64(limit)+1))
	if err != nil {
		return nil, err
	}
	if len(first) <= limit {
		err := s.run(bytes.NewReader(first))
		return &Body{ReadCloser: body, First: first, Whole: true, rest: bytes.NewReader(first)}, err
	}
	f := newFeed(s.run)
	if err := f.give(first); err != nil {
		f.end()
		return nil, err
	}
	return &Body{ReadCloser: body, First: first, rest: io.MultiReader(bytes.NewReader(first), &watched{body: body, feed: f}), feed: f}, nil
}

// Unread reports whether a server may read a form in a body without a type that was not read
// as one here, or not to its end.
func (s *Scan) Unread(body *Body) bool {
	return s.untyped && (s.noForm || !body.Whole && !s.named())
}

// A Body is a body that is inspected while it is passed on.
type Body struct {
	io.ReadCloser
	First []byte // its first bytes
	Whole bool   // First is all of it

	rest io.Reader
	feed *feed // nil: Whole
}

func (b *Body) Read(p []byte) (int, error) { return b.rest.Read(p) }

// Close ends the inspection, and closes the body.
func (b *Body) Close() error {
	if b.feed != nil {
		b.feed.end()
	}
	return b.ReadCloser.Close()
}

// watched passes on what the scan has accepted. It keeps back the last chunk that was
// read, so that nobody has the whole body before all of it is accepted.
type watched struct {
	body  io.Reader
	feed  *feed
	ready []byte // accepted, for the server
	ahead []byte // given to the scan
	err   error
}

func (w *watched) Read(p []byte) (int, error) {
	for len(w.ready) == 0 {
		if w.err != nil {
			return 0, w.err
		}
		w.next()
	}
	n := copy(p, w.ready)
	w.ready = w.ready[n:]
	return n, nil
}

// next reads a chunk, after which the one before it may be passed on.
func (w *watched) next() {
	chunk := make([]byte, chunkSize)
	n, err := w.body.Read(chunk)
	refused := w.feed.give(chunk[:n])
	if err == io.EOF && refused == nil {
		refused = w.feed.end()
	}
	switch {
	case refused != nil:
		w.err = refused
	case err != nil:
		w.err = err
		w.ready = append(w.ahead, chunk[:n]...)
	default:
		w.ready, w.ahead = w.ahead, chunk[:n]
	}
}
