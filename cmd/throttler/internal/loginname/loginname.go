// Package loginname finds the name that a request tries to log in with, and writes the request
// again as it was read.
//
// Servers read one request in different ways: some take the first of two fields and some the
// last, some take a field of the query for one of the body. An attacker could have one name
// counted and another one tried. So a Finder reads strictly, and the server gets what was read,
// written in the one way that all servers read alike. What remains are fields under another name
// that some servers take for the login's, as PHP takes user[] for user: these are refused in a
// body, and taken out of a query.
package loginname

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The errors of a Finder.
var (
	// ErrUnreadable says that a request is not of its type, or that servers may read another
	// name than a Finder.
	ErrUnreadable = errors.New("this login cannot be read")
	// ErrOtherType says that a body has a type that is not read.
	ErrOtherType = errors.New("the body has a type in which no name is looked for")
)

func unreadable(why string) error { return fmt.Errorf("%w: %s", ErrUnreadable, why) }

// A Finder finds names in a field of a form, in JSON, or in either. Goroutines may share it.
type Finder struct {
	field     string           // of a form; "": none
	keys      []string         // that lead to the name in JSON; nil: none
	spellings *regexp.Regexp   // of the field
	keySpells []*regexp.Regexp // of each key
	inQuery   []*regexp.Regexp // what servers take for the name in a query
	inLink    []*regexp.Regexp // or would, but for ASP.NET
}

// New returns a Finder for a field of a form, and for the keys that lead to the name in JSON.
// Either may be empty.
func New(field string, keys []string) *Finder {
	f := &Finder{field: field, keys: keys}
	if field != "" {
		f.spellings = spellingsOf(field, true)
		f.inQuery, f.inLink = append(f.inQuery, f.spellings), append(f.inLink, spellingsOf(field, false))
	}
	for _, key := range keys {
		f.keySpells = append(f.keySpells, spellingsOf(key, false))
	}
	if len(keys) > 0 { // Laravel and Rails take fields of the query for keys of JSON
		asField := strings.Join(keys, "[")
		f.inQuery, f.inLink = append(f.inQuery, spellingsOf(asField, true)), append(f.inLink, spellingsOf(asField, false))
	}
	return f
}

// spellingsOf matches the keys that some server takes for a field, or for a part of it: in any
// case, with any punctuation before and between its words, and with anything behind it that no
// word begins with. PHP reads user[name]x and user.name as user[name], Zope user:string as user.
//
// To ASP.NET a field may also have one more step before it, or one less: it takes model.Email
// for Email, and Email for Input.Email.
func spellingsOf(field string, steps bool) *regexp.Regexp {
	words := strings.FieldsFunc(field, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if len(words) == 0 {
		words = []string{field}
	}
	for i := range words {
		words[i] = regexp.QuoteMeta(words[i])
	}
	const between = `[^\pL\p{Nd}]+`
	pattern := strings.Join(words, between)
	if steps {
		head, _, dotted := strings.Cut(field, ".")
		pattern = `(?:[\pL\p{Nd}_-]+[\[\].:]+)?` + pattern
		if dotted && !strings.Contains(head, "[") && len(words) > 1 {
			pattern += "|" + strings.Join(words[1:], between)
		}
	}
	return regexp.MustCompile(`(?is)^[^\pL\p{Nd}]*(?:` + pattern + `)(?:[^\pL\p{Nd}_-].*)?$`)
}

// isAny reports whether a key is one of some spellings.
func isAny(spellings []*regexp.Regexp, key string) bool {
	key = strings.ToValidUTF8(key, "")
	for _, s := range spellings {
		if s.MatchString(key) {
			return true
		}
	}
	return false
}

// InCookie reports whether a server may take a cookie of this name for the login's: PHP prefers
// cookies to fields unless it is configured otherwise.
func (f *Finder) InCookie(name string) bool {
	if decoded, err := url.QueryUnescape(name); err == nil {
		name = decoded
	}
	return isAny(f.inLink, name)
}

// Query returns the query of a URL without the fields that a server may take for the name. The
// rest stays as it is. Semicolons end fields too, as they do for some servers. isLink says that the
// request only asks for a page: then fields stay that ASP.NET alone takes for the name, as pages may
// have fields like filter[user].
func (f *Finder) Query(raw string, isLink bool) (rest string, err error) {
	spellings := f.inQuery
	if isLink {
		spellings = f.inLink
	}
	if strings.ContainsAny(raw, "# ") {
		return "", unreadable("a query with a fragment or a blank")
	}
	var kept strings.Builder
	for raw != "" {
		field := raw
		if end := strings.IndexAny(raw, "&;"); end >= 0 {
			field = raw[:end+1]
		}
		raw = raw[len(field):]
		before, _, _ := strings.Cut(strings.TrimRight(field, "&;"), "=")
		key, err := url.QueryUnescape(before)
		if err != nil {
			return "", unreadable("the name of a field of the query is malformed")
		}
		if !isAny(spellings, key) {
			kept.WriteString(field)
		}
	}
	return strings.TrimRight(kept.String(), "&;"), nil
}

// InPath reports whether a path has a field that a server may take for the name, behind a question
// mark that was encoded.
func (f *Finder) InPath(decoded string) bool {
	_, query, _ := strings.Cut(decoded, "?")
	for field := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' || r == '?' || r == '#' }) {
		if key, _, _ := strings.Cut(field, "="); isAny(f.inLink, key) {
			return true
		}
	}
	return false
}

// Basic returns the name and the password of HTTP Basic authentication. named is false if there
// is no Authorization. One of another scheme is an error: there are servers that do not look at
// the scheme.
func Basic(h http.Header) (name, password string, named bool, err error) {
	values := h["Authorization"]
	if len(values) == 0 {
		return "", "", false, nil
	}
	name, password, ok := (&http.Request{Header: h}).BasicAuth()
	if !ok || len(values) > 1 {
		return "", "", false, unreadable("want one Authorization, with Basic")
	}
	return name, password, true, checkName(name)
}

// checkName returns an error for a name of which some servers read only a part.
func checkName(name string) error {
	if !utf8.ValidString(name) || strings.ContainsAny(name, "\x00\ufffd") {
		return unreadable("a name that is not UTF-8, or has a NUL")
	}
	return nil
}

// A Body is what was read of a body.
type Body struct {
	Type  string // the Content-Type to send
	Text  []byte // the body to send
	Name  string
	Named bool // it has a name
}

// name notes the value of the name's field.
func (b *Body) name(value string) error {
	if b.Named {
		return unreadable("the name stands there twice")
	}
	b.Name, b.Named = value, true
	return checkName(value)
}

// Read reads a whole body of a Content-Type. files says whether a form may have files.
//
// A body of another type is read as JSON if it begins as JSON, since there are servers that do
// that whatever the type, and sent as JSON then. Otherwise the error is ErrOtherType.
func (f *Finder) Read(contentType string, text []byte, files bool) (*Body, error) {
	kind, boundary, err := f.kindOf(contentType)
	switch {
	case err != nil:
		return nil, err
	case kind == form:
		return f.readForm(contentType, string(text))
	case kind == parts:
		var out bytes.Buffer
		w, b := multipart.NewWriter(&out), new(Body)
		err := f.writeParts(w, multipart.NewReader(bytes.NewReader(text), boundary), files, b.name)
		b.Type, b.Text = w.FormDataContentType(), out.Bytes()
		return b, err
	case kind == jsonText || f.keys != nil && beginsAsJSON(text):
		return f.readJSON(text)
	}
	return nil, ErrOtherType
}

// The kinds of bodies that are read.
const (
	other = iota
	form
	parts
	jsonText
)

// kindOf returns how to read a body of a Content-Type. boundary is that of parts.
func (f *Finder) kindOf(contentType string) (kind int, boundary string, err error) {
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil && contentType != "" {
		return other, "", unreadable("the Content-Type is malformed")
	}
	switch {
	case f.field != "" && media == "application/x-www-form-urlencoded":
		kind = form
	case f.field != "" && media == "multipart/form-data":
		kind = parts
	case f.keys != nil && (media == "application/json" || strings.HasSuffix(media, "+json")):
		kind = jsonText
	case f.field != "" && formlike.MatchString(contentType):
		return other, "", unreadable("a Content-Type that some servers take for a form's")
	default:
		return other, "", nil
	}
	if !isUTF8(params["charset"]) {
		return other, "", unreadable("the charset is not UTF-8")
	}
	return kind, params["boundary"], nil
}

// IsWhole reports whether bodies of a Content-Type can only be read as a whole.
func (f *Finder) IsWhole(contentType string) bool {
	kind, _, _ := f.kindOf(contentType)
	return kind == form || kind == jsonText
}

// formlike matches types in which some servers find the type of a form.
var formlike = regexp.MustCompile(`(?i)url-?encoded|multipart/`)

func isUTF8(charset string) bool { return charset == "" || strings.EqualFold(charset, "utf-8") }

// beginsAsJSON reports whether a body begins as an object, or with what some servers skip before
// one: blanks, marks of the byte order, comments, and the guard )]}' of Gson.
func beginsAsJSON(text []byte) bool {
	if bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")) {
		return true
	}
	text = bytes.TrimLeftFunc(text, func(r rune) bool { return r <= ' ' || r == '\ufeff' || unicode.IsSpace(r) })
	return len(text) > 0 && strings.IndexByte("{/#)", text[0]) >= 0
}

// readJSON reads JSON. Of two equal keys it reads the last, and the server gets that alone.
func (f *Finder) readJSON(text []byte) (*Body, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // so that numbers stay as they are
	var value any
	b, err := &Body{Type: "application/json"}, decoder.Decode(&value)
	if err == nil {
		b.Text, err = json.Marshal(value)
	}
	if err != nil || !json.Valid(text) { // as behind the value
		return nil, unreadable("it is no JSON")
	}
	for i, key := range f.keys {
		object, isObject := value.(map[string]any)
		if !isObject && i > 0 {
			return nil, unreadable("the name is no text")
		}
		for other := range object {
			if other != key && isAny(f.keySpells[i:i+1], other) {
				return nil, unreadable("a key that some servers take for the name's")
			}
		}
		var found bool
		if value, found = object[key]; !found {
			return b, nil
		}
	}
	name, isText := value.(string)
	if !isText {
		return nil, unreadable("the name is no text")
	}
	return b, b.name(name)
}
