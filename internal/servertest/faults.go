package servertest

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// A Fault is what happens to a request on a [Wire].
type Fault int

const (
	NoFault     Fault = iota
	LoseRequest       // the connection breaks before anything is sent
	CutRequest        // it breaks after half of the request
	LoseAnswer        // it breaks after the server has carried out the request
	CutAnswer         // it breaks after the answer's first half
	ResetAnswer       // as LoseAnswer, with ECONNRESET
	LateAnswer        // the deadline passes after the server has carried out the request
	Garbage           // bytes of another protocol come instead of the answer
	Complaint         // a SERVER_ERROR comes instead of the answer
	Faults            // their number
)

func (f Fault) String() string {
	return [...]string{
		"no fault", "lose request", "cut request", "lose answer", "cut answer", "reset answer", "late answer",
		"garbage", "complaint",
	}[f]
}

// A Wire makes connections to real servers with faults. The fault of a request
// tells whether the server carries it out although no answer comes.
type Wire struct {
	// Next returns the fault of each request. Several goroutines may call it at
	// once. A request is one Write: a packet, whatever it holds. The question
	// for the version, which a client asks when it connects, always passes.
	Next func() Fault
}

// DialContext is net.Dialer.DialContext with faults.
func (w *Wire) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &wireConn{Conn: nc, wire: w}, nil
}

// Once makes the n-th request from now meet f, and no other.
func (w *Wire) Once(n int64, f Fault) {
	var requests atomic.Int64
	w.Next = func() Fault {
		if requests.Add(1) == n {
			return f
		}
		return NoFault
	}
}

// A wireConn is a connection with faults. One goroutine may write while another
// one reads.
type wireConn struct {
	net.Conn
	wire *Wire

	mu         sync.Mutex
	fault      Fault // of the next answer
	answers    int   // of the request that meets it
	unanswered int   // requests since the last answer
}

func (c *wireConn) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("version")) {
		return c.Conn.Write(b)
	}
	f := c.wire.Next()
	c.mu.Lock()
	c.unanswered++
	if f > CutRequest { // the server carries the request out
		c.fault, c.answers = f, commands(b)
	}
	c.mu.Unlock()
	switch f {
	case LoseRequest:
		c.Conn.Close()
		return 0, syscall.EPIPE
	case CutRequest:
		n, _ := c.Conn.Write(b[:len(b)/2])
		c.Conn.Close()
		return n, syscall.EPIPE
	}
	return c.Conn.Write(b)
}

func (c *wireConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n == 0 {
		return n, err
	}
	f, shared := c.fault, c.unanswered > 1
	c.fault, c.unanswered = NoFault, 0
	if f == NoFault {
		return n, err
	}
	switch f {
	case LoseAnswer:
		c.Conn.Close()
		return 0, io.EOF
	case ResetAnswer:
		c.Conn.Close()
		return 0, &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	case CutAnswer:
		c.Conn.Close()
		return n / 2, err
	case LateAnswer:
		return 0, os.ErrDeadlineExceeded
	case Garbage:
		return copy(b, "220 mail.example.org ESMTP\r\n"), nil
	}
	if shared { // the answer may be to the other requests too, which would wait for their own
		c.Conn.Close()
	}
	return copy(b, strings.Repeat("SERVER_ERROR out of memory storing object\r\n", c.answers)), nil
}

// commands returns the number of commands in a packet.
func commands(packet []byte) int {
	n := 0
	for len(packet) > 0 {
		line, rest, _ := bytes.Cut(packet, []byte("\r\n"))
		fields := strings.Fields(string(line))
		n++
		packet = rest
		size := -1
		switch fields[0] {
		case "add", "cas", "set":
			size, _ = strconv.Atoi(fields[4])
		case "ms":
			size, _ = strconv.Atoi(fields[2])
		}
		if size >= 0 {
			packet = packet[min(size+2, len(packet)):]
		}
	}
	return n
}
