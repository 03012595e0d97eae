// Package loginname finds the name that a request tries to log in with.
//
// Servers read requests in different ways: some take the first of two fields and some
// the last, some compare field names without regard to case, some take a field of the
// query for one of the body. An attacker could have one name counted and another one
// tried. So a Finder takes a name only if every server would read the same one, and
// otherwise returns an error.
package loginname

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
)

// The errors of a Finder.
var (
	// ErrAmbiguous says that servers may read different names, or a name where others
	// read none.
	ErrAmbiguous = errors.New("servers may read different names")
	// ErrUnreadable says that a body is not of its type, or that the type is not read.
	ErrUnreadable = errors.New("the body cannot be read")
)

func ambiguous(why string) error  { return fmt.Errorf("%w: %s", ErrAmbiguous, why) }
func unreadable(why string) error { return fmt.Errorf("%w: %s", ErrUnreadable, why) }

// A Finder finds the name of one request. It is not safe for concurrent use.
type Finder struct {
	Field string   // of a form or of the query; "": none
	Keys  []string // that lead to the name in JSON; nil: none
	Asks  bool     // the request only asks for a page, and may have a field of another one

	name   string
	found  bool
	sealed bool
	model  bool // a field has been seen that ASP.NET may take for the name
}

// Seal makes every further name an error, also the first: it would come too late to be
// counted.
func (f *Finder) Seal() { f.sealed = true }

// Name returns the name. ok is false if none has been found.
func (f *Finder) Name() (name string, ok bool) { return f.name, f.found }

// expect returns the error that adding a name would have. Call it before the name is read,
// or it would be passed on where a body comes byte by byte.
func (f *Finder) expect() error {
	switch {
	case f.found:
		return ambiguous("the name stands there twice")
	case f.sealed:
		return ambiguous("the name stands too far behind")
	}
	return nil
}

// meet returns whether a server may take key for the field, and whether every one does. The
// error is that of a name that cannot be added, or of a field that ASP.NET may take for it.
func (f *Finder) meet(key string) (may, sure bool, err error) {
	may, sure = f.isField(key)
	if may {
		err = f.expect()
	} else {
		f.model = f.model || f.isOfModel(key)
	}
	if f.model && (!f.Asks || may || f.found) {
		err = ambiguous("a field that ASP.NET may take for the name")
	}
	return may, sure, err
}

// add notes a name.
func (f *Finder) add(name string) error {
	if err := f.expect(); err != nil {
		return err
	}
	if strings.IndexByte(name, 0) >= 0 {
		return ambiguous("a NUL in the name")
	}
	f.name, f.found = name, true
	return nil
}

// Basic reads the user of HTTP Basic authentication. Any other Authorization is an error:
// there are servers that do not look at the scheme.
func (f *Finder) Basic(h http.Header) error {
	values := h["Authorization"]
	if len(values) == 0 {
		return nil
	}
	name, _, ok := (&http.Request{Header: h}).BasicAuth()
	if !ok || len(values) > 1 {
		return ambiguous("want one Authorization, with Basic")
	}
	return f.add(name)
}

// Query reads the query of a URL: many servers take its fields for those of a form. Some end
// it at a number sign or a blank.
func (f *Finder) Query(raw string) error {
	if f.Field == "" {
		return nil
	}
	if strings.ContainsAny(raw, "# ") {
		return ambiguous("a query with a fragment or a blank")
	}
	return f.form(strings.NewReader(raw))
}

// QueryBesideJSON returns an error if the query of a URL has a field that servers may take for the
// name in JSON: Laravel and Rails do. If it is the name's of a form too, Query reads it.
func (f *Finder) QueryBesideJSON(raw string) error {
	if f.Keys == nil {
		return nil
	}
	asForm := &Finder{Field: f.Keys[0]}
	for _, key := range f.Keys[1:] {
		asForm.Field += "[" + key + "]"
	}
	if asForm.IsField(f.Field) {
		return nil
	}
	for _, field := range strings.FieldsFunc(raw, func(r rune) bool { return r == '&' || r == ';' }) {
		before, _, _ := strings.Cut(field, "=")
		key, err := url.QueryUnescape(before)
		if err != nil {
			return unreadable("the name of a field of the query is malformed")
		}
		if asForm.IsField(key) {
			return ambiguous("a field of the query that some servers take for the name in JSON")
		}
	}
	return nil
}

// A Scan reads a body to its end, and tells the Finder of each name in it.
type Scan struct {
	run Reading
	// Lax says that the type of the body does not tell that it has a name.
	Lax bool

	untyped bool        // it has no type
	noForm  bool        // and was not read as a form
	named   func() bool // whether a name has been found in the body
}

// Body returns how to read the body of a request with these header fields. scan is nil
// if its type has no name.
func (f *Finder) Body(h http.Header) (scan *Scan, err error) {
	if len(h["Content-Type"]) > 1 {
		return nil, ambiguous("two Content-Types")
	}
	text := h.Get("Content-Type")
	kind, params, err := mime.ParseMediaType(text)
	if err != nil && text != "" {
		return nil, unreadable("its Content-Type is malformed")
	}
	isForm, isParts := kind == "application/x-www-form-urlencoded", strings.HasPrefix(kind, "multipart/")
	isJSON := kind == "application/json" || strings.HasSuffix(kind, "+json")
	switch {
	case f.Field != "" && formTypes(text) > 1 || formTypes(text) > 0 && !isForm && !isParts:
		return nil, unreadable("its Content-Type names a form beside another type")
	case f.Field != "" && isParts:
		if !isBoundary(params["boundary"]) || !hasOneBoundary(text) {
			return nil, unreadable("its boundary is read in different ways")
		}
		scan = &Scan{run: f.parts(params["boundary"])}
	case f.Field != "" && isForm:
		scan = &Scan{run: f.typedForm}
	case f.Field != "" && text == "":
		scan = &Scan{Lax: true, untyped: true}
		scan.run = f.untyped(scan)
	case f.Keys != nil && isJSON:
		scan = &Scan{run: f.json}
	case f.Keys != nil: // there are servers that read JSON whatever its type
		scan = &Scan{run: f.anyJSON, Lax: true}
	default:
		return nil, nil
	}
	before := f.found
	scan.named = func() bool { return f.found && !before }
	for _, encoding := range h["Content-Encoding"] {
		if encoding != "" && !strings.EqualFold(encoding, "identity") {
			return nil, unreadable("it has a Content-Encoding")
		}
	}
	charset, given := params["charset"]
	if mentions := strings.Count(strings.ToLower(text), "charset"); mentions > 1 || mentions > 0 && !given || !isUTF8(charset) {
		return nil, unreadable("its charset is not UTF-8")
	}
	return scan, nil
}

// isUTF8 reports whether names in a charset are UTF-8. The empty one is.
func isUTF8(charset string) bool {
	charset = strings.ToLower(charset)
	return charset == "" || charset == "utf-8" || charset == "us-ascii"
}

// formTypes counts the types of forms that text names: some servers look for one anywhere.
func formTypes(text string) int {
	text = strings.ToLower(text)
	return strings.Count(text, "urlencoded") + strings.Count(text, "url-encoded") + strings.Count(text, "multipart/")
}
