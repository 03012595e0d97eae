package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Server is the state of a server.
type Server struct {
	Server    string    `json:"server"`
	Up        bool      `json:"up"`
	Error     string    `json:"error,omitempty"`
	Version   string    `json:"version,omitempty"`
	Started   time.Time `json:"started,omitzero"`
	Items     int64     `json:"items"`
	Bytes     int64     `json:"bytes"`
	MaxBytes  int64     `json:"max_bytes"`
	Evictions int64     `json:"evictions"`
	Flushes   int64     `json:"flushes"`
	Conns     int64     `json:"connections"`
}

// ServerStates shows the state of the servers. The error names those that do
// not answer.
func (o *Operator) ServerStates(ctx context.Context) error {
	if o.Store == "" && len(o.Servers) == 0 {
		return errNoServers
	}
	states, err := o.serverStates(ctx)
	return errors.Join(err, o.printServers(states))
}

// serverStates returns the state of each server. The error names those that do not answer.
func (o *Operator) serverStates(ctx context.Context) ([]Server, error) {
	if o.Store != "" {
		return o.redisStates(ctx)
	}
	states := make([]Server, len(o.Servers))
	errs := make([]error, len(o.Servers))
	var each sync.WaitGroup
	for i, server := range o.Servers {
		each.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			if states[i], errs[i] = o.askServer(ctx, server); errs[i] != nil {
				errs[i] = fmt.Errorf("server %s: %w", server, errs[i])
			}
		})
	}
	each.Wait()
	return states, errors.Join(errs...)
}

func (o *Operator) printServers(states []Server) error {
	return o.print(states, func(w io.Writer) {
		fmt.Fprintln(w, "SERVER\tSTATE\tVERSION\tUP FOR\tITEMS\tMEMORY\tCONNECTIONS\tFORGOTTEN")
		for i := range states {
			states[i].row(w)
		}
	})
}

// askServer returns the state of a server.
func (o *Operator) askServer(ctx context.Context, server string) (Server, error) {
	s := Server{Server: server}
	stats, err := o.statsOf(ctx, server)
	if err != nil {
		s.Error = err.Error()
		return s, err
	}
	s.Up, s.Version = true, stats["version"]
	s.Started = time.Now().Add(-time.Duration(number(stats["uptime"])) * time.Second).Truncate(time.Second)
	s.Items, s.Bytes, s.MaxBytes = number(stats["curr_items"]), number(stats["bytes"]), number(stats["limit_maxbytes"])
	s.Evictions, s.Flushes, s.Conns = number(stats["evictions"]), number(stats["cmd_flush"]), number(stats["curr_connections"])
	return s, nil
}

// number returns a number of a server's statistics, or 0 if text is none.
func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

func (o *Operator) statsOf(ctx context.Context, server string) (map[string]string, error) {
	conn, err := o.dialer().Dial(ctx, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.Stats()
}

func (s *Server) row(w io.Writer) {
	if !s.Up {
		fmt.Fprintf(w, "%s\tdown\t-\t-\t-\t-\t-\t%s\n", printable(s.Server), s.Error)
		return
	}
	memory := fmt.Sprintf("%s of %s", size(s.Bytes), size(s.MaxBytes))
	if s.MaxBytes == 0 {
		memory = size(s.Bytes) // without a bound
	}
	fmt.Fprintf(w, "%s\tup\t%s\t%s\t%d\t%s\t%d\t%s\n", printable(s.Server), printable(s.Version), in(time.Now(), s.Started), s.Items, memory, s.Conns, s.forgotten())
}

// forgotten tells what the server has lost since its start.
func (s *Server) forgotten() string {
	var lost []string
	if s.Evictions > 0 {
		lost = append(lost, fmt.Sprintf("%d evicted: too little memory", s.Evictions))
	}
	if s.Flushes > 0 {
		lost = append(lost, fmt.Sprintf("flushed %d times", s.Flushes))
	}
	if len(lost) == 0 {
		return "nothing since it was started"
	}
	return strings.Join(lost, ", ")
}

// size formats a number of bytes.
func size(n int64) string {
	const units = "KMGT"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n)/1024, 0
	for f >= 1024 && unit < len(units)-1 {
		f, unit = f/1024, unit+1
	}
	return fmt.Sprintf("%.3g %ciB", f, units[unit])
}
