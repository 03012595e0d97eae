package rulefile

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/adaptivethrottler/throttler/robots"
)

// lookEvery is the interval at which a Source checks its file for changes.
const lookEvery = time.Second

// A Source is a rule file that is read again when it changes. Keep the result
// of one call of File for a whole decision, so that no change comes in between.
type Source struct {
	path    string
	current atomic.Pointer[File]
	read    os.FileInfo            // of the file as it was last read, valid or not
	limits  map[string]os.FileInfo // of the files of limits that it names
}

// Open reads the file at path.
func Open(path string) (*Source, error) {
	s := &Source{path: path}
	s.read, _ = os.Stat(path) // before Load, so that a change in between is noticed
	file, limits, err := load(path)
	s.limits = limits
	if err != nil {
		return nil, err
	}
	s.current.Store(file)
	return s, nil
}

// File returns the current rules.
func (s *Source) File() *File { return s.current.Load() }

// Watch reads the file again when it, or a file of limits that it names, has changed, and at once on a signal from
// hangup, until ctx ends. If the file is invalid or gone, the current rules stay.
// told is called with the rules, or with the error. Lists of robots that have changed
// are read too; one that is refused leaves what was read of it before in place.
//
// A change is read after the file has stayed the same for a second, so that no
// half-written file is read.
func (s *Source) Watch(ctx context.Context, hangup <-chan os.Signal, told func(*File, error)) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var last os.FileInfo
	var gone absence
	var lists lists
	var lastLimits map[string]os.FileInfo
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			now, _ := os.Stat(s.path)
			s.reload(now, told)
		case <-look.C:
			now, err := os.Stat(s.path)
			if gone.noted(err) {
				s.read = nil // so that it is read when it is back
				told(nil, err)
			}
			if err != nil {
				continue
			}
			var limitsChanged bool
			lastLimits, limitsChanged = s.lookAtLimits(lastLimits)
			if unchanged(last, now) && (limitsChanged || !unchanged(s.read, now)) {
				s.reload(now, told)
			}
			last = now
			if file := s.File(); lists.changed(file.Robots) {
				told(file, file.Robots.Reload())
			}
		}
	}
}

// lookAtLimits returns the files of limits as they are now, and whether they have changed since
// they were read, and not since the last look.
func (s *Source) lookAtLimits(last map[string]os.FileInfo) (now map[string]os.FileInfo, changed bool) {
	now = make(map[string]os.FileInfo)
	settled := true
	for path, read := range s.limits {
		now[path], _ = os.Stat(path) // nil: gone
		settled = settled && same(last[path], now[path])
		changed = changed || !same(read, now[path])
	}
	return now, changed && settled
}

// lists notes changes of the files of robots.
type lists struct {
	of   *robots.Directory
	read map[string]os.FileInfo // as they were last read, valid or not; nil: gone
	last map[string]os.FileInfo // as they were last seen
}

// changed reports whether files of d have changed since they were read, and stayed the same for
// a look. Its caller reads them then.
func (l *lists) changed(d *robots.Directory) bool {
	if d == nil {
		return false
	}
	if d != l.of {
		*l = lists{of: d, read: make(map[string]os.FileInfo)}
	}
	now, settled, different := make(map[string]os.FileInfo), true, false
	for _, file := range d.Files() {
		info, _ := os.Stat(file.Path) // nil: gone
		now[file.Path] = info
		if l.last == nil && info != nil && info.ModTime().Equal(file.Modified) {
			l.read[file.Path] = info
		}
		settled = settled && same(l.last[file.Path], info)
		different = different || !same(l.read[file.Path], info)
	}
	l.last = now
	if !settled || !different {
		return false
	}
	l.read = now
	return true
}

// same reports whether a file is as it was, or still gone.
func same(a, b os.FileInfo) bool { return a == nil && b == nil || unchanged(a, b) }

// An absence counts the looks that have not found the file. While it is being
// replaced, one may not.
type absence int

// noted notes the result of a look, and reports whether the file is missing for
// the second time in a row.
func (a *absence) noted(err error) bool {
	if err == nil {
		*a = 0
		return false
	}
	*a++
	return *a == 2
}

func (s *Source) reload(info os.FileInfo, told func(*File, error)) {
	s.read = info
	file, limits, err := load(s.path)
	if limits != nil {
		s.limits = limits
	}
	if err == nil {
		s.current.Store(file)
	}
	told(file, err)
}

func unchanged(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
