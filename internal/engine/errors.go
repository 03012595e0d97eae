package engine

import (
	"reflect"
	"slices"
	"strings"
)

// failures are several errors as one line of a log, in which each text occurs once.
type failures struct{ errs []error }

func (f *failures) Unwrap() []error { return f.errs }

func (f *failures) Error() string { return strings.Join(f.texts(nil), "; ") }

// texts appends the texts of f to seen, except those that are in it.
func (f *failures) texts(seen []string) []string {
	for _, err := range f.errs {
		if several, ok := err.(*failures); ok {
			seen = several.texts(seen)
		} else if text := err.Error(); !slices.Contains(seen, text) {
			seen = append(seen, text)
		}
	}
	return seen
}

// Join returns the errors of errs that are not nil as one, or nil. A single error
// stays as it is.
func Join(errs ...error) error {
	var all []error
	for _, err := range errs {
		if err != nil {
			all = append(all, err)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return &failures{all}
}

// Same reports whether a and b are the same error value, such as that of ctx.
func Same(a, b error) bool {
	return a != nil && reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}
