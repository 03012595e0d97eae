package rulefile

import (
	"context"
	"os"
	"sync/atomic"
	"time"
)

// lookEvery is how often a Source looks whether its file has changed.
const lookEvery = time.Second

// A Source is a rule file that is read again when it changes. Whoever decides by
// a File keeps it for that decision, so that no change gets between.
type Source struct {
	path    string
	current atomic.Pointer[File]
	read    os.FileInfo // of what current was made of, or of what was broken since
}

// Open reads a file.
func Open(path string) (*Source, error) {
	s := &Source{path: path}
	s.read, _ = os.Stat(path) // before it is read: a change in between is noticed
	file, err := Load(path)
	if err != nil {
		return nil, err
	}
	s.current.Store(file)
	return s, nil
}

// File returns the rules that hold now.
func (s *Source) File() *File { return s.current.Load() }

// Watch reads the file again when it has changed, and at once when hangup says
// so, until ctx ends. A file that cannot be used changes nothing. Each time, told
// is called with the new rules, or with what is wrong with them.
//
// A change is read when the file has stayed the same for a second, so that no
// half of one is read.
func (s *Source) Watch(ctx context.Context, hangup <-chan os.Signal, told func(*File, error)) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var last os.FileInfo
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			now, _ := os.Stat(s.path)
			s.reload(now, told)
		case <-look.C:
			now, err := os.Stat(s.path)
			if err != nil {
				continue // it is being replaced, or gone: the rules stay
			}
			if unchanged(last, now) && !unchanged(s.read, now) {
				s.reload(now, told)
			}
			last = now
		}
	}
}

func (s *Source) reload(info os.FileInfo, told func(*File, error)) {
	s.read = info
	file, err := Load(s.path)
	if err == nil {
		s.current.Store(file)
	}
	told(file, err)
}

func unchanged(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
