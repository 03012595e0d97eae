package storetest

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
)

// A wire is between a client and its server. It knows nothing of what they speak.
type wire struct {
	addr, server string

	mu      sync.Mutex // guards what follows
	text    []byte     // the request that has it meets the fault; nil: none does
	fault   fault
	lost    func()        // is called before the connection is lost
	met     chan struct{} // closed when a request has met the fault
	held    chan struct{} // closed when what is held up may pass
	clients map[net.Conn]bool
	refuses bool          // new connections
	hangs   bool          // nothing passes until resume
	delay   time.Duration // of each answer
	pieces  bool          // answers come byte by byte
}

func newWire(t *testing.T, server string) *wire {
	w := &wire{server: server, held: make(chan struct{}), clients: make(map[net.Conn]bool)}
	w.addr = servertest.Serve(t, w.serve)
	t.Cleanup(w.resume)
	return w
}

// arm has the next request that contains text meet f.
func (w *wire) arm(text string, f fault, lost func()) (met <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text, w.fault, w.lost = []byte(text), f, lost
	w.met, w.held = make(chan struct{}), make(chan struct{})
	return w.met
}

// set changes w.
func (w *wire) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// hang has nothing pass until resume.
func (w *wire) hang() { w.set(func() { w.hangs, w.held = true, make(chan struct{}) }) }

// resume passes on what was held up.
func (w *wire) resume() {
	w.set(func() {
		w.hangs = false
		select {
		case <-w.held:
		default:
			close(w.held)
		}
	})
}

// cut ends all connections.
func (w *wire) cut() {
	w.set(func() {
		for nc := range w.clients {
			nc.Close()
		}
	})
}

// meets reports whether request meets the fault, which only one does.
func (w *wire) meets(request []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.text == nil || !bytes.Contains(request, w.text) {
		return false
	}
	w.text = nil
	return true
}

// wait returns when bytes may pass, as they do now.
func (w *wire) wait() (delay time.Duration, pieces bool) {
	w.mu.Lock()
	hangs, held := w.hangs, w.held
	w.mu.Unlock()
	if hangs {
		<-held
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.delay, w.pieces
}

func (w *wire) serve(client net.Conn) {
	refused := false
	w.set(func() { refused, w.clients[client] = w.refuses, true })
	defer w.set(func() { delete(w.clients, client) })
	if refused {
		return
	}
	server, err := net.Dial("tcp", w.server)
	if err != nil {
		return
	}
	defer server.Close()
	lose := make(chan struct{}) // closed when the next answer is to be lost
	go w.answer(client, server, lose)
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		w.wait()
		if w.meets(buf[:n]) {
			switch {
			case w.fault.late:
				close(w.met)
				<-w.held
			case w.fault.done:
				close(lose)
			default:
				w.lost()
				close(w.met)
				return
			}
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// answer passes answers on.
func (w *wire) answer(client, server net.Conn, lose <-chan struct{}) {
	defer client.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		select {
		case <-lose:
			w.lost()
			close(w.met)
			return
		default:
		}
		delay, pieces := w.wait()
		time.Sleep(delay)
		for data := buf[:n]; len(data) > 0; {
			size := len(data)
			if pieces {
				size = 1
			}
			if _, err := client.Write(data[:size]); err != nil {
				return
			}
			data = data[size:]
		}
	}
}
