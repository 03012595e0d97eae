// Package memcached asks one memcached server for its statistics, its keys and
// their values, over a connection of its own. It is for operators' tools.
// Decisions go through package pool.
package memcached

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// ErrRefused matches, by errors.Is, the error of a command that the server does
// not support: it is too old, or a managed service that forbids it.
var ErrRefused = errors.New("refused by the server")

// ErrBusy matches the error of a list of keys while the server makes another
// one. It matches ErrRefused too.
var ErrBusy = fmt.Errorf("%w: busy", ErrRefused)

// Bounds on the answers of a server.
const (
	maxLine  = 4 << 10 // a fully encoded key takes 750 bytes
	maxValue = 1<<20 + 1<<10
)

// patience is the time that a server may take to send more.
const patience = 5 * time.Second

// A DialFunc connects to a server. network is "tcp" or "unix".
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// A Conn is a connection to one server. Its methods are for one goroutine.
// After an error that does not match ErrRefused it is useless.
type Conn struct {
	conn net.Conn
	r    *bufio.Reader
}

// A Dialer connects to servers. The zero Dialer is ready to use.
type Dialer struct {
	// DialContext makes the connections. Default: net.Dialer's.
	DialContext DialFunc

	// User and Password are sent to a memcached that was started with -Y.
	User, Password string
}

// Dial connects to a server, named as in package pool: "host:port", or the path
// of a socket. The connection is closed when ctx ends.
func (d Dialer) Dial(ctx context.Context, server string) (*Conn, error) {
	dial := d.DialContext
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	network, address := "tcp", server
	if path, socket := strings.CutPrefix(server, "unix:"); socket || strings.Contains(path, "/") {
		network, address = "unix", path
	}
	dialing, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := dial(dialing, network, address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	c := &Conn{conn: endingConn{conn, stop}, r: bufio.NewReaderSize(conn, maxLine)}
	if d.User != "" || d.Password != "" {
		if err := c.login(d.User, d.Password); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// login sends the set command that memcached -Y takes for a login. Without -Y
// it stores an item that has expired already.
func (c *Conn) login(user, password string) error {
	credentials := user + " " + password
	if err := c.send(fmt.Sprintf("set login 0 -1 %d\r\n%s\r\n", len(credentials), credentials)); err != nil {
		return err
	}
	answer, err := c.line()
	if err == nil && answer != "STORED" {
		err = fmt.Errorf("unexpected %q", answer)
	}
	if err != nil {
		return fmt.Errorf("login: %w", err)
	}
	return nil
}

// endingConn stops waiting for the end of its context when it is closed.
type endingConn struct {
	net.Conn
	stop func() bool
}

func (c endingConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// Stats returns the server's general statistics by name: see memcached's
// doc/protocol.txt.
func (c *Conn) Stats() (map[string]string, error) {
	if err := c.send("stats\r\n"); err != nil {
		return nil, err
	}
	stats := make(map[string]string)
	for {
		line, err := c.line()
		if err != nil {
			return nil, err
		}
		if line == "END" {
			return stats, nil
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "STAT "), " ")
		if !ok || !strings.HasPrefix(line, "STAT ") {
			return nil, fmt.Errorf("stats: unexpected %q", line)
		}
		stats[name] = value
	}
}

// Keys yields every key on the server, in no order. It may yield expired items,
// and miss an item that is written meanwhile. The last pair may be an error,
// with an empty key. That matches ErrRefused if the server cannot list keys.
// After an early stop the Conn is useless.
func (c *Conn) Keys() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		err := c.dump("hash", yield)
		if errors.Is(err, ErrRefused) { // before 1.6.9
			err = c.dump("all", yield)
		}
		if err != nil && err != errStopped {
			yield("", err)
		}
	}
}

var errStopped = errors.New("stopped")

func (c *Conn) dump(what string, yield func(string, error) bool) error {
	if err := c.send("lru_crawler metadump " + what + "\r\n"); err != nil {
		return err
	}
	for {
		line, err := c.line()
		if err != nil || line == "END" {
			return err
		}
		key, err := dumpedKey(line)
		if err != nil {
			return err
		}
		if !yield(key, nil) {
			return errStopped
		}
	}
}

// dumpedKey returns the key in a line of a metadump: "key=a%20b exp=… la=…".
func dumpedKey(line string) (string, error) {
	field, _, _ := strings.Cut(line, " ")
	encoded, ok := strings.CutPrefix(field, "key=")
	if !ok {
		return "", fmt.Errorf("lru_crawler metadump: unexpected %q", line)
	}
	return url.PathUnescape(encoded)
}

// Values returns the values of keys, which must be legal. Keys without an item
// are left out.
func (c *Conn) Values(keys []string) (map[string][]byte, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	if err := c.send("get " + strings.Join(keys, " ") + "\r\n"); err != nil {
		return nil, err
	}
	values := make(map[string][]byte, len(keys))
	for {
		line, err := c.line()
		if err != nil {
			return nil, err
		}
		if line == "END" {
			return values, nil
		}
		key, value, err := c.value(line)
		if err != nil {
			return nil, err
		}
		values[key] = value
	}
}

// ClusterConfig returns the configuration of the cluster (a version, and the
// nodes) from a node of Amazon ElastiCache or a similar service. The error
// matches ErrRefused if the server is not in a cluster.
func (c *Conn) ClusterConfig() (string, error) {
	config, err := c.clusterConfig("config get cluster")
	if errors.Is(err, ErrRefused) { // before 1.4.14
		config, err = c.clusterConfig("get AmazonElastiCache:cluster")
	}
	return config, err
}

func (c *Conn) clusterConfig(command string) (string, error) {
	if err := c.send(command + "\r\n"); err != nil {
		return "", err
	}
	line, err := c.line()
	if err != nil {
		return "", err
	}
	if line == "END" {
		return "", fmt.Errorf("%w: not a node of a cluster, want its configuration endpoint", ErrRefused)
	}
	_, config, err := c.value(line)
	if err == nil {
		line, err = c.line()
	}
	if err == nil && line != "END" {
		err = fmt.Errorf("%s: unexpected %q", command, line)
	}
	return string(config), err
}

// value reads the data after line, "VALUE <key> <flags> <bytes>" or the same
// with CONFIG.
func (c *Conn) value(line string) (key string, value []byte, err error) {
	fields := strings.Fields(line)
	if len(fields) < 4 || fields[0] != "VALUE" && fields[0] != "CONFIG" {
		return "", nil, fmt.Errorf("get: unexpected %q", line)
	}
	size, err := strconv.Atoi(fields[3])
	if err != nil || size < 0 || size > maxValue {
		return "", nil, fmt.Errorf("get: unexpected %q", line)
	}
	data := make([]byte, size+2)
	if _, err := io.ReadFull(c.r, data); err != nil {
		return "", nil, err
	}
	value, ok := bytes.CutSuffix(data, []byte("\r\n"))
	if !ok {
		return "", nil, fmt.Errorf("get: the value of %q does not end where it should", fields[1])
	}
	return fields[1], value, nil
}

func (c *Conn) send(command string) error {
	c.conn.SetDeadline(time.Now().Add(patience))
	_, err := io.WriteString(c.conn, command)
	return err
}

// line reads a line of an answer.
func (c *Conn) line() (string, error) {
	if c.r.Buffered() == 0 {
		c.conn.SetReadDeadline(time.Now().Add(patience))
	}
	raw, err := c.r.ReadSlice('\n')
	if err != nil {
		return "", err
	}
	line := string(bytes.TrimRight(raw, "\r\n"))
	word, _, _ := strings.Cut(line, " ")
	switch word {
	case "BUSY":
		return "", fmt.Errorf("%w: %s", ErrBusy, line)
	case "ERROR", "CLIENT_ERROR", "SERVER_ERROR":
		return "", fmt.Errorf("%w: %s", ErrRefused, line)
	}
	return line, nil
}
