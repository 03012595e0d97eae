package memcachedtest

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

// A Fault is what becomes of one request on a [Wire].
type Fault int

const (
	NoFault     Fault = iota
	LoseRequest       // the connection breaks before anything is sent
	CutRequest        // it breaks after half of the request
	LoseAnswer        // it breaks after the server has carried the request out
	CutAnswer         // it breaks after the answer's first half
	ResetAnswer       // as LoseAnswer, with ECONNRESET
	LateAnswer        // the deadline passes after the server has carried the request out
	Garbage           // something else comes instead of the answer
	Complaint         // a SERVER_ERROR comes instead of the answer
	Faults            // how many there are
)

func (f Fault) String() string {
	return [...]string{
		"no fault", "lose request", "cut request", "lose answer", "cut answer", "reset answer", "late answer",
		"garbage", "complaint",
	}[f]
}

// A Wire makes connections to real servers on which requests meet faults. A
// request whose answer does not come is one that the server has carried out, or
// will never see: the fault says which.
type Wire struct {
	// Next is asked for each request, by several goroutines at once. A request
	// is one Write: a packet, with whatever a client has put into it. The
	// question for the version, which a client asks when it connects, is none and
	// always arrives.
	Next func() Fault
}

// DialContext is a net.Dialer's, with faults.
func (w *Wire) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &wireConn{Conn: nc, wire: w}, nil
}

// Once has the n-th request from now meet f, and no other.
func (w *Wire) Once(n int64, f Fault) {
	var requests atomic.Int64
	w.Next = func() Fault {
		if requests.Add(1) == n {
			return f
		}
		return NoFault
	}
}

// A wireConn meets the faults of one connection, which one goroutine may write to
// while another one reads.
type wireConn struct {
	net.Conn
	wire *Wire

	mu      sync.Mutex
	fault   Fault // what becomes of the next answer
	answers int   // how many answers the request that meets it has
}

func (c *wireConn) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("version")) {
		return c.Conn.Write(b)
	}
	switch f := c.wire.Next(); f {
	case NoFault:
	case LoseRequest:
		c.Conn.Close()
		return 0, syscall.EPIPE
	case CutRequest:
		n, _ := c.Conn.Write(b[:len(b)/2])
		c.Conn.Close()
		return n, syscall.EPIPE
	default:
		c.mu.Lock()
		c.fault, c.answers = f, commands(b)
		c.mu.Unlock()
	}
	return c.Conn.Write(b)
}

func (c *wireConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.fault
	if f == NoFault || n == 0 {
		return n, err
	}
	c.fault = NoFault
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
	return copy(b, strings.Repeat("SERVER_ERROR out of memory storing object\r\n", c.answers)), nil
}

// commands returns how many commands a packet has.
func commands(packet []byte) int {
	n := 0
	for len(packet) > 0 {
		line, rest, _ := bytes.Cut(packet, []byte("\r\n"))
		fields := strings.Fields(string(line))
		n++
		packet = rest
		if verb := fields[0]; verb == "add" || verb == "cas" || verb == "set" {
			size, _ := strconv.Atoi(fields[4])
			packet = packet[min(size+2, len(packet)):]
		}
	}
	return n
}
