package rulefile

import (
	"context"
	"os"
	"sync/atomic"
	"time"
)

// lookEvery is the interval at which a Source checks its file for changes.
const lookEvery = time.Second

// A Source is a rule file that is read again when it changes. Keep the result
// of one call of File for a whole decision, so that no change comes in between.
type Source struct {
	path    string
	current atomic.Pointer[File]
	read    os.FileInfo // of the file as it was last read, valid or not
}

// Open reads the file at path.
func Open(path string) (*Source, error) {
	s := &Source{path: path}
	s.read, _ = os.Stat(path) // before Load, so that a change in between is noticed
	file, err := Load(path)
	if err != nil {
		return nil, err
	}
	s.current.Store(file)
	return s, nil
}

// File returns the current rules.
func (s *Source) File() *File { return s.current.Load() }

// Watch reads the file again when it has changed, and at once on a signal from
// hangup, until ctx ends. If the file is invalid or gone, the current rules stay.
// told is called with the new rules, or with the error.
//
// A change is read after the file has stayed the same for a second, so that no
// half-written file is read.
func (s *Source) Watch(ctx context.Context, hangup <-chan os.Signal, told func(*File, error)) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var last os.FileInfo
	var gone absence
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
			if unchanged(last, now) && !unchanged(s.read, now) {
				s.reload(now, told)
			}
			last = now
		}
	}
}

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
	file, err := Load(s.path)
	if err == nil {
		s.current.Store(file)
	}
	told(file, err)
}

func unchanged(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
