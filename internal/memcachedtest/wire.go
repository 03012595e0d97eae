package memcachedtest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// patience is the timeout of a server that runs.
const patience = 5 * time.Second

// ask sends line to the server at addr and returns its answer as
// [Server.Command] does.
func ask(addr, line string, timeout time.Duration) ([]string, error) {
	conn, err := net.DialTimeout(network(addr), addr, timeout)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(timeout))
	if _, err := io.WriteString(conn, line+"\r\n"); err != nil {
		return nil, err
	}
	return readAnswer(bufio.NewReader(conn))
}

// network returns "unix" for the path of a socket and "tcp" for "host:port", as
// gomemcache does.
func network(addr string) string {
	if strings.Contains(addr, "/") {
		return "unix"
	}
	return "tcp"
}

func readAnswer(r *bufio.Reader) ([]string, error) {
	var answer []string
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("after %d lines: %w", len(answer), err)
		}
		line = strings.TrimRight(line, "\r\n")
		if line == "END" {
			return answer, nil
		}
		answer = append(answer, line)
		if !inList(line) {
			return answer, nil
		}
		if strings.HasPrefix(line, "VALUE ") {
			data, err := readData(r, line)
			if err != nil {
				return nil, fmt.Errorf("data of %q: %w", line, err)
			}
			answer = append(answer, data)
		}
	}
}

// inList reports whether more lines follow line.
func inList(line string) bool {
	for _, prefix := range []string{"STAT ", "VALUE ", "ITEM ", "PREFIX ", "key="} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}

// readData reads the data block that follows "VALUE <key> <flags> <bytes> [<cas>]".
func readData(r *bufio.Reader, line string) (string, error) {
	fields := strings.Fields(line)
	if len(fields) < 4 {
		return "", fmt.Errorf("%d fields", len(fields))
	}
	size, err := strconv.ParseUint(fields[3], 10, 31)
	if err != nil {
		return "", err
	}
	data := make([]byte, size+2)
	if _, err := io.ReadFull(r, data); err != nil {
		return "", err
	}
	return string(data[:size]), nil
}
