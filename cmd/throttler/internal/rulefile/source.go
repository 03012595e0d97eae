package rulefile

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/robots"
)

// lookEvery is the interval at which a Source checks its files for changes.
const lookEvery = time.Second

// A Source is a rule file that is read again when it changes. Keep the result
// of one call of File for a whole decision, so that no change comes in between.
type Source struct {
	path    string
	current atomic.Pointer[File]
	files   watched // the file, and the files of limits that it names
	lists   watched // of robots
	listsOf *robots.Directory
}

// Open reads the file at path.
func Open(path string) (*Source, error) {
	s := &Source{path: path, files: watched{read: make(map[string]os.FileInfo)}}
	_, err := s.load()
	if err != nil {
		return nil, err
	}
	return s, nil
}

// File returns the current rules.
func (s *Source) File() *File { return s.current.Load() }

// Watch reads the file again when it, or a file of limits that it names, has changed, and at once on a signal from
// hangup, until ctx ends. If the file is invalid or gone, the current rules stay.
// told is called with the rules, or with the error. Lists of robots that have changed
// are read too; one that is refused leaves what was read of it before in place.
//
// Changes are read after the files have stayed the same for a second, so that no
// half-written file is read.
func (s *Source) Watch(ctx context.Context, hangup <-chan os.Signal, told func(*File, error)) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			told(s.load())
		case <-look.C:
			if s.files.changed() {
				told(s.load())
			}
			if file := s.File(); s.listsChanged(file.Robots) {
				told(file, file.Robots.Reload())
			}
		}
	}
}

// load reads the file. One that is invalid or gone leaves the current rules in place.
func (s *Source) load() (*File, error) {
	info, _ := os.Stat(s.path) // before it is read, so that a change in between is noticed
	file, limits, err := load(s.path)
	if limits != nil {
		s.files.read = limits
	}
	s.files.read[s.path] = info
	if err == nil {
		s.current.Store(file)
	}
	return file, err
}

// listsChanged reports whether files of d, which may be nil, have changed since they were read.
// Its caller reads them then.
func (s *Source) listsChanged(d *robots.Directory) bool {
	if d != s.listsOf {
		s.listsOf, s.lists = d, watched{read: make(map[string]os.FileInfo)}
		if d == nil {
			return false
		}
		for _, file := range d.Files() {
			s.lists.read[file.Path] = nil
			if info, err := os.Stat(file.Path); err == nil && info.ModTime().Equal(file.Modified) {
				s.lists.read[file.Path] = info
			}
		}
	}
	return s.lists.changed()
}

// watched are files that are looked at again and again.
type watched struct {
	read map[string]os.FileInfo // as they were last read, valid or not; nil: gone
	last map[string]os.FileInfo // as they were last seen
}

// changed looks at the files. It reports whether they have changed since they were read, and
// not since the last look.
func (w *watched) changed() bool {
	now := make(map[string]os.FileInfo, len(w.read))
	settled, different := true, false
	for path, read := range w.read {
		now[path], _ = os.Stat(path) // nil: gone
		settled = settled && same(w.last[path], now[path])
		different = different || !same(read, now[path])
	}
	w.last = now
	if !settled || !different {
		return false
	}
	w.read = now
	return true
}

// same reports whether a file is as it was, or still gone.
func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
