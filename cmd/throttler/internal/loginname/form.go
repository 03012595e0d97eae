package loginname

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/textproto"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxValue is the most that is read of a field in parts before it is written.
const maxValue = 64 << 10

// readForm reads a form, and writes it with each key and value encoded.
func (f *Finder) readForm(contentType, text string) (*Body, error) {
	b := &Body{Type: "application/x-www-form-urlencoded"}
	if strings.Contains(strings.ToLower(contentType), "charset") { // some servers assume another one
		b.Type += "; charset=UTF-8"
	}
	var out strings.Builder
	for field := range strings.SplitSeq(text, "&") {
		rawKey, rawValue, hasValue := strings.Cut(field, "=")
		key, keyErr := url.QueryUnescape(rawKey)
		value, valueErr := url.QueryUnescape(rawValue)
		if keyErr != nil || valueErr != nil {
			return nil, unreadable("a field is malformed")
		}
		isName, err := f.isName(key)
		switch {
		case err != nil:
		case isName:
			err = b.name(value)
		case isCharset(key) && !isUTF8(value):
			err = unreadable("its _charset_ is not UTF-8")
		}
		if err != nil {
			return nil, err
		}
		if out.Len() > 0 {
			out.WriteByte('&')
		}
		out.WriteString(url.QueryEscape(key))
		if hasValue {
			out.WriteString("=" + url.QueryEscape(value))
		}
	}
	b.Text = []byte(out.String())
	return b, nil
}

// isName reports whether a field of a form is the name's. The error is that of one which only some
// servers take for it.
func (f *Finder) isName(key string) (bool, error) {
	if key != f.field && f.spellings.MatchString(strings.ToValidUTF8(key, "")) {
		return false, unreadable("a field that some servers take for the name's")
	}
	return key == f.field, nil
}

// isCharset reports whether a field says the charset of its form, to servers that ask for it.
func isCharset(key string) bool { return strings.EqualFold(key, "_charset_") }

// Parts returns a form in parts that is written again while it is read. Reading it fails before
// a field that a server may take for the name's. ok is false if the type is another one. Close it.
func (f *Finder) Parts(contentType string, body io.Reader) (newType string, written io.ReadCloser, ok bool) {
	kind, boundary, err := f.kindOf(contentType)
	if err != nil || kind != parts {
		return "", nil, false
	}
	r, w := io.Pipe()
	out := multipart.NewWriter(w)
	go func() {
		w.CloseWithError(f.writeParts(out, multipart.NewReader(body, boundary), true, func(string) error {
			return unreadable("the name stands too far behind")
		}))
	}()
	return out.FormDataContentType(), r, true
}

// writeParts reads a form in parts, and writes it. It calls name with the value of the name's
// field before it writes that. files says whether there may be files.
func (f *Finder) writeParts(out *multipart.Writer, in *multipart.Reader, files bool, name func(string) error) error {
	for {
		part, err := in.NextPart()
		if err == io.EOF {
			return out.Close()
		}
		if err == nil {
			err = f.writePart(out, part, files, name)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnreadable, err)
		}
	}
}

// writePart writes a part with what was read of its header: what it is called, and its type.
func (f *Finder) writePart(out *multipart.Writer, part *multipart.Part, files bool, name func(string) error) error {
	kind, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	key := params["name"]
	filename, isFile := params["filename"]
	isPlain := utf8.ValidString(key+filename) && !strings.ContainsFunc(key+filename, unicode.IsControl)
	if err != nil || kind != "form-data" || key == "" || !isPlain || strings.ContainsAny(key, "\"\\") || strings.Contains(key, "=?") {
		return errors.New("a part whose name servers read in different ways")
	}
	disposition := `form-data; name="` + key + `"`
	if isFile {
		filename = filename[strings.LastIndexAny(filename, `/\`)+1:]
		disposition += `; filename="` + strings.ReplaceAll(filename, `"`, "%22") + `"`
	}
	header := textproto.MIMEHeader{"Content-Disposition": {disposition}}
	if media, params, err := mime.ParseMediaType(part.Header.Get("Content-Type")); err == nil {
		if strings.HasPrefix(media, "multipart/") || !isUTF8(params["charset"]) && !isFile {
			return errors.New("a part that has parts, or another charset")
		}
		header.Set("Content-Type", mime.FormatMediaType(media, params))
	}
	isName, err := f.isName(key)
	if err != nil || isName && isFile || isFile && !files {
		return cmp.Or(err, errors.New("a file in a login form"))
	}
	content := io.Reader(part)
	if isName || isCharset(key) {
		value, err := io.ReadAll(io.LimitReader(part, maxValue))
		switch {
		case err != nil:
			return err
		case isName:
			header.Del("Content-Type") // a text, without a charset
			err = name(string(value))
		case !isUTF8(string(value)):
			err = errors.New("its _charset_ is not UTF-8")
		}
		if err != nil {
			return err
		}
		content = io.MultiReader(bytes.NewReader(value), part)
	}
	to, err := out.CreatePart(header)
	if err == nil {
		_, err = io.Copy(to, content)
	}
	return err
}
