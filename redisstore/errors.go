package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/adaptivethrottler/throttler/internal/failure"
	"github.com/adaptivethrottler/throttler/pool"
	"github.com/redis/rueidis"
)

// serverError returns err as the failure of a server, or of the way to it. Ordinary answers (a
// miss, a conflict) are no failures.
func serverError(server string, err error) error {
	var c *complaint
	return &failure.ServerError{
		Store: "redisstore", Server: server, Err: err,
		Answered: errors.Is(err, failure.ErrOverloaded) || errors.As(err, &c) && !c.passing,
	}
}

// A complaint is an error that a server reported.
type complaint struct {
	text    string
	advice  string // what to do
	passing bool   // the server cannot answer for now
	demoted bool   // the server is no primary any more
	refused bool   // the server lets no new connection in
}

func (c *complaint) Error() string {
	if c.advice == "" {
		return c.text
	}
	return c.text + " (" + c.advice + ")"
}

// complain returns the complaint of an error that a server reported.
func complain(err *rueidis.RedisError) *complaint {
	c := &complaint{text: err.Error()}
	for _, k := range known {
		if strings.Contains(c.text, k.contains) {
			c.advice, c.passing, c.demoted, c.refused = k.advice, k.passing, k.demoted, k.refused
			break
		}
	}
	return c
}

// known are the errors of servers that are told apart. The first that matches counts.
var known = []struct {
	contains string
	advice   string

	passing, demoted, refused bool
}{
	{contains: "LOADING ", passing: true},
	{contains: "CLUSTERDOWN ", passing: true},
	{contains: "MASTERDOWN ", passing: true},
	{contains: "TRYAGAIN ", passing: true},
	{contains: "BUSY ", passing: true, advice: "another script runs for long: see SCRIPT KILL"},
	{contains: "READONLY ", passing: true, demoted: true, advice: "it is a replica: give the address of the primary, or those of Sentinel with master_set"},
	{contains: "max number of clients", passing: true, refused: true, advice: "raise maxclients"},
	{contains: "OOM ", advice: "raise maxmemory, or set maxmemory-policy to volatile-ttl"},
	{contains: "MISCONF ", advice: "the server cannot save its data: see its log"},
	{contains: "NOREPLICAS ", advice: "too few replicas answer for min-replicas-to-write"},
	{contains: "WRONGTYPE ", advice: "another program uses this key: set a prefix, or use a server of its own"},
	{contains: "NOAUTH ", refused: true, advice: "put user and password into the URL"},
	{contains: "WRONGPASS ", refused: true, advice: "check user and password in the URL"},
	{contains: "'evalsha'", advice: scriptAdvice},
	{contains: "'eval'", advice: scriptAdvice},
	{contains: "access one of the keys", advice: "allow the user the keys: ACL SETUSER name ~* or, with a prefix, ~prefix*"},
	{contains: "NOPERM ", advice: "allow the user the commands: ACL SETUSER name " + allowed},
	{contains: "run this command", advice: "allow the user the commands: ACL SETUSER name " + allowed}, // in a script
}

const (
	allowed      = "+evalsha +eval +get +mget +set +del +ping +info +scan +role +select +asking +cluster|slots +cluster|shards"
	scriptAdvice = "scripts must be allowed: ACL SETUSER name " + allowed
)

// classify returns err, of rueidis, as a complaint if a server reported it.
func classify(err error) error {
	var reported *rueidis.RedisError
	switch {
	case errors.As(err, &reported):
		return complain(reported)
	case isTimeout(err):
		return fmt.Errorf("no answer: %w", err)
	}
	return err
}

func isComplaint(err error) bool {
	var c *complaint
	return errors.As(err, &c)
}

func isDemoted(err error) bool {
	var c *complaint
	return errors.As(err, &c) && c.demoted
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// isUnsent reports whether err means that nothing was sent: there was no connection.
func isUnsent(err error) bool {
	var network *net.OpError
	return errors.Is(err, pool.ErrClosed) || errors.As(err, &network) && network.Op == "dial"
}

// errOverloaded is the error of a request whose turn did not come in time.
var errOverloaded = fmt.Errorf("%w: not sent in time", failure.ErrOverloaded)
