package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A queue is a folder with a file for each message. The name of the file is the
// message's ID. The order is that of the names.
type queue struct {
	dir  string
	last int64 // the number of the last message put
}

const (
	unfinished = ".notify-" // prefix of files that are being written
	rejected   = "rejected" // the folder of lines that are not messages
	ending     = ".json"
)

// openFolder returns the queue in dir, into which other programs put messages.
func openFolder(dir string) (*queue, error) {
	q := &queue{dir: dir}
	_, err := q.list()
	return q, err
}

// openSpool returns the queue in dir, to put messages in. It creates dir if
// necessary, and removes files that another process has not finished, and so
// not acknowledged.
func openSpool(dir string) (*queue, error) {
	if err := os.MkdirAll(filepath.Join(dir, rejected), 0o700); err != nil {
		return nil, err
	}
	abandoned, err := filepath.Glob(filepath.Join(dir, unfinished+"*"))
	if err != nil {
		return nil, err
	}
	for _, path := range abandoned {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(syncFolder(dir), syncFolder(filepath.Dir(filepath.Clean(dir)))); err != nil {
		return nil, err
	}
	q := &queue{dir: dir}
	ids, err := q.list()
	for _, id := range ids {
		number, err := strconv.ParseInt(strings.TrimSuffix(id, ending), 10, 64)
		if err == nil {
			q.last = max(q.last, number)
		}
	}
	return q, err
}

// list returns the IDs of the messages, in order.
func (q *queue) list() ([]string, error) {
	entries, err := os.ReadDir(q.dir) // sorted by name
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if e.Type().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// open opens a message for reading.
func (q *queue) open(id string) (*os.File, error) {
	return os.Open(filepath.Join(q.dir, id))
}

// remove removes a message, if it is still there.
func (q *queue) remove(id string) error {
	err := os.Remove(filepath.Join(q.dir, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// put appends a message to the queue. When it returns nil, the message survives
// a stop of the machine. Only one goroutine may call put and reject.
func (q *queue) put(message []byte) (id string, err error) {
	id = q.nextID()
	return id, q.store(message, filepath.Join(q.dir, id))
}

// reject stores a line that is not a message.
func (q *queue) reject(line []byte) (path string, err error) {
	path = filepath.Join(q.dir, rejected, q.nextID())
	return path, q.store(line, path)
}

// nextID returns an ID greater than the last one: the time in nanoseconds. It
// is greater than all before, unless the clock is set back while the queue is
// empty.
func (q *queue) nextID() string {
	q.last = max(q.last+1, time.Now().UnixNano())
	return fmt.Sprintf("%019d%s", q.last, ending)
}

// store writes a file as a whole or not at all.
func (q *queue) store(content []byte, path string) error {
	f, err := os.CreateTemp(q.dir, unfinished)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// syncFolder waits until the names in dir are on the disk.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
