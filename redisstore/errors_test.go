package redisstore_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/redisstore"
	"github.com/stretchr/testify/require"
)

// decide makes one call over a new throttler.
func decide(t *testing.T, s *redisstore.Store, value string) throttler.Decision {
	t.Helper()
	d, err := throttler.New(s).Authorize(context.Background(), rule(value, 2))
	require.NoError(t, err)
	return d
}

// What a user may do is what the page on Redis says, and no more.
func TestUsersWithPermissions(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	server.Command("ACL", "SETUSER", "good", "on", ">secret", "~app:*", "+evalsha", "+eval", "+get", "+mget", "+set", "+del", "+info")
	server.Command("ACL", "SETUSER", "noscript", "on", ">secret", "~*", "+get", "+mget", "+set", "+del")
	server.Command("ACL", "SETUSER", "noset", "on", ">secret", "~*", "+get", "+evalsha", "+eval")
	at := func(user, password, more string) *redisstore.Store {
		return open(t, fmt.Sprintf("redis://%s:%s@%s%s", user, password, server.Addr, more))
	}
	good := at("good", "secret", "?prefix=app:")
	require.NoError(t, decide(t, good, "a").Err)
	require.Equal(t, 2, admitted(t, rule("b", 2), 3, good))
	require.NoError(t, good.Check(context.Background()))
	require.NoError(t, throttler.New(good).Reset(context.Background(), rule("a", 2)))

	for _, c := range []struct {
		store *redisstore.Store
		says  string
	}{
		{at("good", "secret", ""), "allow the user the keys"},
		{at("good", "wrong", ""), "check user and password"},
		{at("noscript", "secret", ""), "scripts must be allowed: ACL SETUSER name +evalsha +eval"},
		{at("noset", "secret", ""), "+set"},
	} {
		d := decide(t, c.store, "a")
		require.Equal(t, throttler.Authorized, d.Status, "fails open")
		require.ErrorContains(t, d.Err, c.says)
		require.NotContains(t, d.Err.Error(), "secret")
		require.NotErrorIs(t, d.Err, throttler.ErrUnavailable)
	}
	noscript := at("noscript", "secret", "?prefix=app:")
	d, err := throttler.New(noscript).Peek(context.Background(), rule("b", 2))
	require.NoError(t, err)
	require.NoError(t, d.Err, "to look needs no script")
	require.Equal(t, throttler.Blocked, d.Status)
}

// permissions returns those of docs/redis.md.
func permissions(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../docs/redis.md")
	require.NoError(t, err)
	_, line, _ := strings.Cut(string(page), "ACL SETUSER limits ")
	line, _, _ = strings.Cut(line, "\n")
	return line
}

// The permissions of docs/redis.md are enough, over a Cluster too.
func TestThePermissionsOfThePageAreEnough(t *testing.T) {
	t.Parallel()
	grant := append([]string{"ACL", "SETUSER", "limits"}, strings.Fields(permissions(t))...)
	servers := append(servertest.NewRedisCluster(t), servertest.NewRedis(t))
	for _, server := range servers {
		server.Command(grant...)
	}
	for _, server := range []*servertest.Redis{servers[0], servers[6]} {
		s := open(t, "redis://limits:password@"+server.Addr)
		require.Equal(t, 5, admitted(t, rule("a", 5), 2, s))
		_, err := s.GetMulti([]string{"a", "b"})
		require.NoError(t, err)
		require.NoError(t, s.Check(context.Background()))
		require.NoError(t, throttler.New(s).Reset(context.Background(), rule("a", 5)))
	}
	servers[6].Command("ACL", "LOG", "RESET")
	require.NoError(t, decide(t, open(t, "redis://limits:password@"+servers[6].Addr), "b").Err)
	require.NotContains(t, servers[6].Command("ACL", "LOG"), "evalsha")
	require.NoError(t, decide(t, open(t, "redis://limits:password@"+servers[6].Addr+"/1"), "b").Err)
}

// The user of a Cluster of Redis 8 needs one more command. The page must name it, too.
func TestAClusterOfRedis8SaysWhichPermissionIsMissing(t *testing.T) {
	t.Parallel()
	addr := servertest.Serve(t, func(nc net.Conn) {
		converse(nc, "8.0.0", func(args []string) string {
			return "-NOPERM User limits has no permissions to run the '" + strings.ToLower(strings.Join(args, "|")) + "' command"
		})
	})
	err := decide(t, open(t, "redis://"+addr+"?addr="+addr), "a").Err
	require.ErrorContains(t, err, "'cluster|shards' command")
	_, advice, _ := strings.Cut(err.Error(), "ACL SETUSER name ")
	require.Contains(t, advice, "+cluster|shards")
	require.Contains(t, permissions(t), strings.TrimSuffix(advice, ")"))
}

// The key of a slot that moves is asked for at the new node, which is to be told so.
func TestThePermissionsOfThePageAreEnoughWhileASlotMoves(t *testing.T) {
	t.Parallel()
	nodes := servertest.NewRedisCluster(t)
	for _, n := range nodes {
		n.Command(append([]string{"ACL", "SETUSER", "limits"}, strings.Fields(permissions(t))...)...)
	}
	key := keyIn(func(slot uint16) bool { return int(slot)*3/16384 == 0 })
	slot := strconv.Itoa(int(redisstore.Slot(key)))
	from, to := nodes[0].Command("CLUSTER", "MYID"), nodes[1].Command("CLUSTER", "MYID")
	nodes[1].Command("CLUSTER", "SETSLOT", slot, "IMPORTING", from)
	nodes[0].Command("CLUSTER", "SETSLOT", slot, "MIGRATING", to)
	x := newSingle(key, true)
	open(t, "redis://limits:password@"+nodes[0].Addr).Exchange(context.Background(), x)
	r := <-x.done
	require.NoError(t, r.Err)
	require.True(t, r.Stored)
}

func TestAServerThatAsksForAPassword(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t, "--requirepass", "secret")
	require.ErrorContains(t, decide(t, open(t, "redis://"+server.Addr), "a").Err, "put user and password into the URL")
	require.NoError(t, decide(t, open(t, "redis://:secret@"+server.Addr), "a").Err)
}

func TestAKeyOfAnotherTypeIsAnErrorOfItsOwn(t *testing.T) {
	t.Parallel()
	server := servertest.NewRedis(t)
	s := open(t, "redis://"+server.Addr)
	server.Command("LPUSH", "test#ip#list", "x")
	r := rule("list", 2)
	r.Either = append(r.Either, rule("other", 2).Either[0])
	r.Either[1].Name = "other"
	d, err := throttler.New(s).Authorize(context.Background(), r)
	require.NoError(t, err)
	require.ErrorContains(t, d.Outcomes[0].Err, "set a prefix")
	require.NotErrorIs(t, d.Outcomes[0].Err, throttler.ErrUnavailable)
	require.NoError(t, d.Outcomes[1].Err)
	require.Equal(t, 1, d.Outcomes[1].Remaining)
	require.Equal(t, "list", server.Command("TYPE", "test#ip#list"))

	_, err = s.Get("test#ip#list")
	require.ErrorContains(t, err, "set a prefix")
	written, swapped := newSingle("test#ip#list", true), newSingle("test#ip#list", true)
	swapped.item.CasID = 1
	s.Exchange(context.Background(), written, swapped)
	require.ErrorContains(t, (<-written.done).Err, "set a prefix")
	require.False(t, (<-swapped.done).Stored)
	require.Equal(t, "list", server.Command("TYPE", "test#ip#list"))
}

func TestAReplicaIsUnavailable(t *testing.T) {
	t.Parallel()
	primary := servertest.NewRedis(t)
	host, port := split(t, primary.Addr)
	replica := servertest.NewRedis(t, "--replicaof", host+" "+port)
	d := decide(t, open(t, "redis://"+replica.Addr), "a")
	require.ErrorIs(t, d.Err, throttler.ErrUnavailable)
	require.ErrorContains(t, d.Err, "address of the primary")
}

// answering starts a server that answers each command but the first ones of a connection
// with a line.
func answering(t *testing.T, line string) string {
	t.Helper()
	return scripted(t, alone(func([]string) string { return line }))
}

// alone answers as a server that is no node of a Cluster.
func alone(answer func(args []string) string) func(args []string) string {
	return func(args []string) string {
		if args[0] == "CLUSTER" {
			return "-ERR This instance has cluster support disabled"
		}
		return answer(args)
	}
}

// scripted starts a server that answers each command but the first ones of a connection as
// answer says. Instead of an answer of no length it ends the connection.
func scripted(t *testing.T, answer func(args []string) string) (addr string) {
	t.Helper()
	return servertest.Serve(t, func(nc net.Conn) { converse(nc, "7.0.0", answer) })
}

// refuse is a server on one connection that answers each command with a line.
func refuse(nc net.Conn, line string) {
	in := bufio.NewReader(nc)
	for {
		if _, err := readCommand(in); err != nil {
			return
		}
		if _, err := nc.Write([]byte(line + "\r\n")); err != nil {
			return
		}
	}
}

// converse is a server of that version on one connection.
func converse(nc net.Conn, version string, answer func([]string) string) {
	in := bufio.NewReader(nc)
	for {
		args, err := readCommand(in)
		if err != nil {
			return
		}
		var reply string
		switch args[0] = strings.ToUpper(args[0]); args[0] {
		case "HELLO":
			reply = "%2\r\n+version\r\n+" + version + "\r\n+proto\r\n:3"
		case "CLIENT":
			reply = "+OK"
		default:
			if reply = answer(args); reply == "" {
				return
			}
		}
		if _, err := nc.Write([]byte(reply + "\r\n")); err != nil {
			return
		}
	}
}

// readCommand reads an array of strings, which may hold any bytes.
func readCommand(in *bufio.Reader) (args []string, err error) {
	var n int
	if _, err := fmt.Fscanf(in, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	for range n {
		var size int
		if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		text := make([]byte, size+len("\r\n"))
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		args = append(args, string(text[:size]))
	}
	return args, nil
}

func TestWhatAServerReportsIsToldApart(t *testing.T) {
	t.Parallel()
	for line, unavailable := range map[string]bool{
		"-LOADING Redis is loading the dataset in memory":                                  true,
		"-CLUSTERDOWN The cluster is down":                                                 true,
		"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'": true,
		"-TRYAGAIN Multiple keys request during rehashing of slot":                         true,
		"-BUSY Redis is busy running a script":                                             true,
		"-READONLY You can't write against a read only replica.":                           true,
		"-ERR max number of clients reached":                                               true,
		"-OOM command not allowed when used memory > 'maxmemory'.":                         false,
		"-MISCONF Redis is configured to save RDB snapshots":                               false,
		"-NOREPLICAS Not enough good replicas to write.":                                   false,
		"-ERR unknown command 'evalsha', with args beginning with: ":                       false,
		"-ERR something else":                                                              false,
	} {
		s := open(t, "redis://"+answering(t, line))
		begun := time.Now()
		d := decide(t, s, "a")
		require.Less(t, time.Since(begun), s.Timeout, "%s: it waits for nothing", line)
		require.ErrorContains(t, d.Err, strings.TrimPrefix(strings.TrimPrefix(line[1:], "ERR "), "-"), line)
		if unavailable {
			require.ErrorIs(t, d.Err, throttler.ErrUnavailable, line)
		} else {
			require.NotErrorIs(t, d.Err, throttler.ErrUnavailable, line)
		}
		require.False(t, s.Stats()[0].Down, "a server that answers is there")
	}
}

// Calls come fast. If each made a connection, they would soon use up all ports. A password may be
// changed while there is a client, and a node may be full while the others of its Cluster are not.
func TestAServerThatRefusesIsConnectedToNowAndThen(t *testing.T) {
	t.Parallel()
	const readOnly, wrongPass, noRoom = "-READONLY You can't write against a read only replica.",
		"-WRONGPASS invalid username-password pair or user is disabled.", "-ERR max number of clients reached"
	for _, row := range []struct {
		line               string
		connected, cluster bool
	}{{line: readOnly}, {line: wrongPass}, {line: noRoom}, {line: wrongPass, connected: true}, {line: wrongPass, connected: true, cluster: true}} {
		var refuses atomic.Bool // the second server
		var conns atomic.Int64
		var addrs [2]string
		for i := range addrs {
			addrs[i] = servertest.Serve(t, func(nc net.Conn) {
				begun := i == 1 && refuses.Load() // while it refuses
				if i == 1 {
					conns.Add(1)
				}
				if begun && row.line != readOnly {
					refuse(nc, row.line)
					return
				}
				answer := func(args []string) string {
					switch {
					case begun:
						return row.line
					case i == 1 && refuses.Load():
						return "" // the connection ends
					case args[0] == "CLUSTER":
						return slotsAt(t, addrs[:]...)
					}
					return ":1"
				}
				if !row.cluster {
					answer = alone(answer)
				}
				converse(nc, "7.0.0", answer)
			})
		}
		patient, s := open(t, "redis://"+addrs[1]), open(t, "redis://"+addrs[1])
		patient.BreakerPause, s.BreakerPause = time.Hour, 10*time.Millisecond
		if row.connected {
			for _, s := range []*redisstore.Store{patient, s} {
				require.NoError(t, writeIn(s, true))
				require.NoError(t, writeIn(s, false))
			}
		}
		refuses.Store(true)
		require.Eventually(t, func() bool { return writeIn(patient, false) != nil }, 20*time.Second, time.Millisecond)
		before := conns.Load()
		for range 100 {
			require.ErrorContains(t, writeIn(patient, false), row.line[len("-ERR "):])
			if row.cluster {
				require.NoError(t, writeIn(patient, true), "the other node is there")
			}
		}
		require.LessOrEqual(t, conns.Load(), before+6, row)
		for _, server := range patient.Stats() {
			require.False(t, server.Down, "a server that answers is there")
		}
		require.Error(t, writeIn(s, false))
		refuses.Store(false)
		require.Eventually(t, func() bool { return writeIn(s, false) == nil }, 20*time.Second, time.Millisecond, row)
	}
}

func TestAServerThatTalksNonsenseIsUnavailable(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"220 mail.example.org ESMTP", "*0", "*2\r\n:1\r\n:1", "+OK"} {
		d := decide(t, open(t, "redis://"+answering(t, line)), "a")
		require.Error(t, d.Err, line)
	}
	for _, line := range []string{"*0", "*1\r\n:1", "*3\r\n:1\r\n:1\r\n:1", ":1"} { // to a bundle of two
		s := open(t, "redis://"+answering(t, line))
		one, other := newSingle("one", true), newSingle("other", true)
		s.Exchange(context.Background(), one, other)
		for _, x := range []*single{one, other} {
			r := <-x.done
			require.ErrorIs(t, r.Err, throttler.ErrUnavailable, line)
			require.False(t, r.Stored, line)
			require.True(t, r.Unknown, "it may have been carried out")
		}
	}
	s := open(t, "redis://"+answering(t, ":2")) // of which one is not to be written
	one, other := newSingle("one", true), newSingle("other", false)
	s.Exchange(context.Background(), one, other)
	for _, x := range []*single{one, other} {
		r := <-x.done
		require.ErrorIs(t, r.Err, throttler.ErrUnavailable)
		require.False(t, r.Stored)
	}
}

func TestANumberIsNoRecord(t *testing.T) {
	t.Parallel()
	s := open(t, "redis://"+scripted(t, alone(func(args []string) string {
		if args[0] == "MGET" {
			return "*2\r\n:1\r\n:1"
		}
		return ":1"
	})))
	one, other, alone := newSingle("one", false), newSingle("other", false), newSingle("alone", false)
	s.Exchange(context.Background(), one, other)
	s.Exchange(context.Background(), alone)
	for _, x := range []*single{one, other, alone} {
		r := <-x.done
		require.NoError(t, r.Err)
		require.Nil(t, r.Found)
		require.False(t, r.Stored)
	}
}

// Redis before 7.0 knows no SET with NX and GET. It is asked once.
func TestAnOldServerWritesNewRecordsByTheScript(t *testing.T) {
	t.Parallel()
	var sets, scripts atomic.Int64
	s := open(t, "redis://"+scripted(t, alone(func(args []string) string {
		if args[0] == "SET" {
			sets.Add(1)
			return "-ERR syntax error"
		}
		scripts.Add(1)
		return ":1"
	})))
	for i := range 5 {
		require.NoError(t, decide(t, s, strconv.Itoa(i)).Err)
	}
	require.EqualValues(t, 1, sets.Load())
	require.EqualValues(t, 5, scripts.Load())
}

func TestIPv4IsTriedInTimeIfIPv6LeadsNowhere(t *testing.T) {
	t.Parallel()
	d := redisstore.Bounded(redisstore.DefaultTimeout)
	require.Equal(t, redisstore.DefaultTimeout, d.Timeout)
	require.Positive(t, d.FallbackDelay) // zero is 300 ms
	require.Less(t, d.FallbackDelay, d.Timeout/2)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	known := httptest.NewTLSServer(nil) // of 127.0.0.1
	known.Close()
	secret, err := x509.MarshalPKCS8PrivateKey(known.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	certFile, keyFile := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: known.Certificate().Raw})
	require.NoError(t, os.WriteFile(certFile, cert, 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	addr, err := servertest.FreeAddr(servertest.OtherPorts)
	require.NoError(t, err)
	_, port := split(t, addr)
	servertest.NewRedis(t, "--tls-port", port, "--tls-cert-file", certFile, "--tls-key-file", keyFile,
		"--tls-ca-cert-file", certFile, "--tls-auth-clients", "no")

	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(cert))
	s := open(t, "rediss://"+addr)
	s.TLSConfig = &tls.Config{RootCAs: roots}
	require.NoError(t, decide(t, s, "a").Err)
	require.Equal(t, 2, admitted(t, rule("b", 2), 3, s, open(t, "rediss://"+addr+"?skip_verify=true")))
	require.ErrorContains(t, decide(t, open(t, "rediss://"+addr), "a").Err, "certificate")
}
