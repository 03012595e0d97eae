package loginname

import (
	"io"
	"sync"
)

// A feed runs a Reading on what it is given piece by piece.
type feed struct {
	pieces chan []byte
	hungry chan struct{} // the Reading has read all it was given, and wants more
	over   chan struct{} // closed: there is no more
	ended  chan struct{} // closed: the Reading has ended
	err    error         // of the Reading, once it has ended
	close  func()        // closes over
	piece  []byte
}

func newFeed(read Reading) *feed {
	f := &feed{pieces: make(chan []byte), hungry: make(chan struct{}), over: make(chan struct{}), ended: make(chan struct{})}
	f.close = sync.OnceFunc(func() { close(f.over) })
	go func() {
		f.err = read(f)
		close(f.ended)
	}()
	f.wait()
	return f
}

// Read is for the Reading.
func (f *feed) Read(p []byte) (int, error) {
	if len(f.piece) == 0 {
		select {
		case f.hungry <- struct{}{}:
		case <-f.over:
			return 0, io.EOF
		}
		select {
		case f.piece = <-f.pieces:
		case <-f.over:
			return 0, io.EOF
		}
	}
	n := copy(p, f.piece)
	f.piece = f.piece[n:]
	return n, nil
}

// wait returns when the Reading has read all, with its error if it has ended.
func (f *feed) wait() error {
	select {
	case <-f.hungry:
		return nil
	case <-f.ended:
		return f.err
	}
}

// give gives the Reading a piece, and returns when it has read it.
func (f *feed) give(piece []byte) error {
	if len(piece) == 0 {
		return nil
	}
	select {
	case f.pieces <- piece:
		return f.wait()
	case <-f.ended:
		return f.err
	}
}

// end tells the Reading that there is no more, and returns its error. It may be called
// again, and while give runs.
func (f *feed) end() error {
	f.close()
	<-f.ended
	return f.err
}
