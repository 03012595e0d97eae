package loginname_test

import (
	"bytes"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/loginname"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// What a Finder finds, besides names.
const (
	none       = "(none)"
	ambiguous  = "(ambiguous)"
	unreadable = "(unreadable)"
)

// found is what f has found, after err.
func found(t *testing.T, f *loginname.Finder, err error) string {
	t.Helper()
	name, ok := f.Name()
	switch {
	case err == nil && ok:
		return name
	case err == nil:
		return none
	}
	if assert.True(t, bytes.Contains([]byte(err.Error()), []byte(": ")), "the error says why") {
		for _, kind := range []struct {
			err  error
			text string
		}{{loginname.ErrAmbiguous, ambiguous}, {loginname.ErrUnreadable, unreadable}} {
			if assert.ObjectsAreEqual(true, isA(err, kind.err)) {
				return kind.text
			}
		}
	}
	return err.Error()
}

// inBody is what is found in a body of a type.
func inBody(t *testing.T, f *loginname.Finder, contentType, body string) string {
	t.Helper()
	h := http.Header{}
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	scan, err := f.Body(h)
	if err == nil && scan != nil {
		_, err = scan.Inspect(io.NopCloser(strings.NewReader(body)), 1<<20)
	}
	return found(t, f, err)
}

const urlencoded = "application/x-www-form-urlencoded"

func TestTheNameOfAForm(t *testing.T) {
	for body, want := range map[string]string{
		"user=alice&p=x":                     "alice",
		"p=x&user=al%69ce":                   "alice",
		"p=x&user=al+ice%2B":                 "al ice+",
		"us%65r=alice":                       "alice",
		"user=":                              "",
		"user":                               "",
		"":                                   none,
		"p=x&q":                              none,
		"users=a&xuser=b&user_id=7":          none,
		"p=a;b=c":                            none,
		"user=alice&user=bob":                ambiguous,
		"user=alice&user=alice":              ambiguous,
		"user=alice&USER=bob":                ambiguous,
		"User=alice":                         ambiguous,
		"user[]=alice":                       ambiguous,
		"?user=alice":                        ambiguous, // to URLSearchParams
		"_charset_=UTF-8&user=alice":         "alice",
		"user=alice&_charset_=":              "alice",
		"user=alice&_charset_=ibm037":        unreadable,
		"_charset_=utf-7&p=x":                unreadable,
		"%5Fcharset_=utf%2D16&user=alice":    unreadable,
		"user[a][b]=alice":                   ambiguous,
		"+user=alice":                        ambiguous,
		"user+=alice":                        ambiguous,
		"user%00=alice":                      ambiguous,
		"'user'=alice":                       ambiguous,
		"%22user%22=alice":                   ambiguous,
		"user=alice%00x":                     ambiguous,
		"x=1;user=alice":                     ambiguous,
		"user=alice;x=1":                     ambiguous,
		"user=alice&x=1;user=bob":            ambiguous,
		"user=%zz":                           ambiguous,
		"[user=alice":                        ambiguous, // which Rack takes for the name
		"user]=alice":                        ambiguous,
		"user%5D%5B=alice":                   ambiguous,
		"user:string=alice":                  ambiguous, // and Zope
		"!user=alice":                        ambiguous, // and Spring
		"user.x=alice":                       ambiguous,
		"u%C5%BFer=alice":                    ambiguous, // in any case, an s
		"\ufeffuser=alice":                   ambiguous,
		"\xff\xfeu\x00":                      ambiguous,
		"us%er=alice":                        unreadable,
		strings.Repeat("a", 5000):            unreadable,
		"user=" + strings.Repeat("a", 17000): unreadable,
		"text=" + strings.Repeat("a", 17000) + "&user=alice": "alice",
	} {
		assert.Equal(t, want, inBody(t, &loginname.Finder{Field: "user"}, urlencoded, body), "%.60s", body)
	}
	for body, want := range map[string]string{"log.in=alice": "alice", "log_in=alice": ambiguous, "log in=alice": ambiguous, "log[in=alice": ambiguous, "log=alice": none} {
		assert.Equal(t, want, inBody(t, &loginname.Finder{Field: "log.in"}, urlencoded, body), body)
	}
	for body, want := range map[string]string{"user.name[]=alice": ambiguous, "user name[x]=alice": ambiguous, "user_name.x=alice": ambiguous, "user_names[]=alice": none} {
		assert.Equal(t, want, inBody(t, &loginname.Finder{Field: "user_name"}, urlencoded, body), body)
	}
	for body, want := range map[string]string{"user[name]=alice&user[password]=x": "alice", "user[NAME]=alice": ambiguous, "[user][name]=alice": ambiguous, "user[name][]=alice": ambiguous, "user=x&username=y": none,
		"user[name]=decoy&user[name]x=alice": ambiguous, "user[name].x=alice": ambiguous, "user[name=alice": ambiguous, "user.name=alice": ambiguous,
		"[user].name=alice": ambiguous,
		"user[name_format]=x&user[first][name]=y&user[]=z": none,
	} {
		assert.Equal(t, want, inBody(t, &loginname.Finder{Field: "user[name]"}, urlencoded, body), body)
	}
}

func TestAFieldWithOneStepMoreOrLessMayBeTheNameToASPNET(t *testing.T) {
	for field, bodies := range map[string]map[string]string{
		"user": {
			"user=decoy&model.user=alice": ambiguous, "model[user]=alice&user=decoy": ambiguous, "model.User=alice&x=1&user=decoy": ambiguous,
			"model.user=alice": ambiguous, "x=1&MODEL[User][]=alice": ambiguous, "model.user.x=y&model.username=y": none,
			"user=alice&model.username=y": "alice", "user=alice&a.b.user=y": "alice", "a.b.user=y": none, "model.user.x=y&user=alice": "alice",
		},
		"Input.Email": {
			"Input.Email=alice&Input.Password=x": "alice", "Input.Email=decoy&Input[Email]=alice": ambiguous, "Input.EmailAgain=x": none,
			"Email=alice": ambiguous, "email=alice&Password=x": ambiguous, "Input.Email=decoy&Email=alice": ambiguous, "Model.Input.Email=alice": ambiguous,
			"EmailAgain=x&Emails=x&Input=x": none, "Email.x=y&Output.Email=x": none,
		},
		"a.b.user":          {"b.user=alice": ambiguous, "b[user]=alice": ambiguous, "user=x": none},
		"user[name]":        {"user[name]=alice&name=y": "alice", "name=alice": none}, // PHP and Rails do not leave out steps
		"user[first.name]":  {"name=x": none},
		"Logins[0].Account": {"Account=x": none},
	} {
		for body, want := range bodies {
			assert.Equal(t, want, inBody(t, &loginname.Finder{Field: field}, urlencoded, body), "%s %s", field, body)
			f := &loginname.Finder{Field: field}
			assert.Equal(t, want, found(t, f, f.Query(body)), "%s ?%s", field, body)
		}
	}
}

func TestTheNameOfAQueryIsOneOfTheForm(t *testing.T) {
	f := &loginname.Finder{Field: "user"}
	assert.Equal(t, "alice", found(t, f, f.Query("next=%2F&user=alice")))
	assert.Equal(t, ambiguous, inBody(t, f, urlencoded, "user=alice"))
	for _, raw := range []string{"user=alice#17", "a=b#&user=alice", "user=alice HTTP/1.1 17"} {
		f = &loginname.Finder{Field: "user"}
		assert.Equal(t, ambiguous, found(t, f, f.Query(raw)), raw)
	}
	f = &loginname.Finder{Keys: []string{"user"}}
	assert.Equal(t, none, found(t, f, f.Query("user=alice")))
}

func TestAFieldOfTheQueryMayBeAKeyOfJSONToAServer(t *testing.T) {
	for keys, queries := range map[string]map[string]string{
		"user": {
			"user=alice": ambiguous, "a=b&us%65r=alice": ambiguous, "a;user=alice": ambiguous, "USER": ambiguous, "user[]=alice": ambiguous, "a#&user=alice": ambiguous,
			"": none, "a=user&users=a&user_id=1&x[user]=b&x.user=c&": none, "%zz=1": unreadable, "a=%zz": none,
		},
		"user.name": {"user[name]=alice": ambiguous, "user.name=alice": ambiguous, "user=x&name=y&user[id]=z": none},
	} {
		for query, want := range queries {
			f := &loginname.Finder{Keys: strings.Split(keys, ".")}
			assert.Equal(t, want, found(t, f, f.QueryBesideJSON(query)), "%s ?%s", keys, query)
		}
	}
	for field, want := range map[string]string{"user": none, "USER": none, "": ambiguous, "login": ambiguous} {
		f := &loginname.Finder{Field: field, Keys: []string{"user"}}
		assert.Equal(t, want, found(t, f, f.QueryBesideJSON("user=alice")), "else Query reads it: %s", field)
	}
	f := &loginname.Finder{Field: "user"}
	assert.Equal(t, none, found(t, f, f.QueryBesideJSON("user=alice")))
}

func TestTheTypeOfABody(t *testing.T) {
	const body = "user=alice"
	for kind, want := range map[string]string{
		urlencoded:                                         "alice",
		"Application/X-WWW-Form-Urlencoded":                "alice",
		urlencoded + "; charset=UTF-8":                     "alice",
		urlencoded + "; charset=utf-16":                    unreadable,
		urlencoded + "; charset=ibm037":                    unreadable,
		urlencoded + "; charset=a; charset=b":              unreadable,
		urlencoded + ", text/plain":                        unreadable,
		urlencoded + `; x="charset=utf-7;"`:                unreadable, // to servers that look for it anywhere
		urlencoded + `; x="charset=utf-7;"; charset=utf-8`: unreadable,
		urlencoded + `; charset=utf-8; x="charset=utf-7"`:  unreadable,
		urlencoded + `; x=y; charset="utf-8"`:              "alice",
		"text/plain":                                       none,
		"":                                                 "alice", // to Rack, WebOb and Python's cgi
		"text/urlencoded":                                  unreadable,
		"application/x-url-encoded":                        unreadable, // a form to Werkzeug
		`text/plain; a="multipart/form-data; boundary=B"`:  unreadable,
		urlencoded + "; a=\"multipart/form-data\"":         unreadable,
		"multipart/form-data":                              unreadable,
		"multipart/form-data; boundary=a b":                unreadable,
		"multipart/form-data; boundary=\"a,b\"":            unreadable,
	} {
		assert.Equal(t, want, inBody(t, &loginname.Finder{Field: "user"}, kind, body), kind)
	}
	f := &loginname.Finder{Field: "user"}
	_, err := f.Body(http.Header{"Content-Type": {urlencoded}, "Content-Encoding": {"gzip"}})
	assert.ErrorIs(t, err, loginname.ErrUnreadable)
	_, err = f.Body(http.Header{"Content-Type": {urlencoded, "text/plain"}})
	assert.ErrorIs(t, err, loginname.ErrAmbiguous)
	scan, err := f.Body(http.Header{"Content-Type": {urlencoded}, "Content-Encoding": {"identity"}})
	assert.NoError(t, err)
	assert.NotNil(t, scan)
}

func TestABoundaryIsTheOneThatAllServersFind(t *testing.T) {
	for kind, want := range map[string]string{
		"multipart/form-data; boundary=B":                               "alice",
		`Multipart/Form-Data;boundary="B"`:                              "alice",
		"multipart/form-data; boundary=B; charset=UTF-8":                "alice",
		`multipart/form-data; charset="utf-8"; boundary=B`:              "alice",
		`multipart/related; type="text/xml"; start="<x>"; boundary="B"`: "alice",
		`multipart/form-data; x="boundary=C;"; boundary=B`:              unreadable, // to PHP the first one is C
		`multipart/form-data; xboundary=C; boundary=B`:                  unreadable,
		"multipart/boundary; charset=utf-8; boundary=B":                 unreadable,
		`multipart/form-data; boundary=B; x="boundary=C"`:               unreadable,
		`multipart/form-data; charset="utf-8; boundary=C"; boundary=B`:  unreadable,
		"multipart/form-data; boundary=B; boundary*=utf-8''C":           unreadable, // which only some servers know
		"multipart/form-data; boundary=B; x*=utf-8''C":                  unreadable,
	} {
		assert.Equal(t, want, inBody(t, &loginname.Finder{Field: "user"}, kind, parts(alice)), kind)
	}
}

// parts is a body of parts, each with its header lines, a blank line and its content.
func parts(all ...string) string {
	text := ""
	for _, part := range all {
		text += "--B\r\n" + part + "\r\n"
	}
	return text + "--B--\r\n"
}

const (
	alice = "Content-Disposition: form-data; name=\"user\"\r\n\r\nalice"
	other = "Content-Disposition: form-data; name=\"text\"\r\n\r\nx"
)

func TestBoundariesOfAllClientsAreRead(t *testing.T) {
	for _, boundary := range []string{"----WebKitFormBoundary7MA4YWxkTrZu0gW", "Boundary+0123ABCD0123ABCD", "dart-http-boundary-+_.x", "boundary_.oOo._MTIzNDU2Nzg5MA=="} {
		kind := `multipart/form-data; boundary="` + boundary + `"`
		body := strings.ReplaceAll(parts(other, alice), "--B", "--"+boundary)
		assert.Equal(t, "alice", inBody(t, &loginname.Finder{Field: "user"}, kind, body), kind)
	}
}

func TestTheNameOfAMultipartForm(t *testing.T) {
	disposition := func(text string) string { return parts("Content-Disposition: form-data; " + text + "\r\n\r\nalice") }
	for body, want := range map[string]string{
		parts(alice):                             "alice",
		parts(other, alice, other):               "alice",
		strings.TrimSuffix(parts(alice), "\r\n"): "alice",
		parts(other):                             none,
		disposition("name=user"):                 "alice",
		parts("content-disposition: form-data; NAME=\"user\"\r\n\r\n"): "",
		parts(other+strings.Repeat("x\n", 9000), alice):                "alice",
		parts(alice, alice):                                                                    ambiguous,
		disposition(`name="User"`):                                                             ambiguous,
		disposition(`name='user'`):                                                             unreadable,
		disposition(`name="us\er"`):                                                            unreadable,
		disposition(`name="user[]"`):                                                           ambiguous,
		disposition(`name="user"; filename="x"`):                                               ambiguous,
		disposition(`name="user"; name="x"`):                                                   unreadable,
		disposition(`name*=utf-8''user`):                                                       unreadable,
		disposition(`name="x"; name*0=us; name*1=er`):                                          unreadable,
		disposition(`name="user`):                                                              unreadable,
		parts("Content-Transfer-Encoding: base64\r\n" + alice):                                 ambiguous,
		parts("Content-Type: text/plain; charset=utf-16\r\n" + alice):                          ambiguous,
		parts("Content-Type: text/plain; charset=UTF-8\r\n" + alice):                           "alice",
		parts("Content-Type: text/plain; charset=utf-16; x=utf-8\r\n" + alice):                 ambiguous,
		parts("Content-Type: text/plain; x=utf-8; charset=utf-16\r\n" + alice):                 ambiguous,
		disposition(`name="x\"; name=\"user"`):                                                 unreadable, // to servers that do not unescape
		disposition(`x="; name=user"; name="y"`):                                               unreadable,
		disposition(`name="username"`):                                                         none,
		parts("Content-Disposition: form-data; name=f; filename=\"name.txt\"\r\n\r\nx", alice): "alice",
		parts("Content-Disposition: form-data; name=\"_charset_\"\r\n\r\nutf-16", alice):       unreadable,
		parts("Content-Disposition: form-data; name=\"_charset_\"\r\n\r\nUTF-8", alice):        "alice",
		parts("Content-Disposition: form-data; name=x\r\n" + alice):                            unreadable,
		parts("Content-Disposition: form-data;\r\n name=\"user\"\r\n\r\nalice"):                unreadable,
		parts("Content-Disposition : form-data; name=\"user\"\r\n\r\nalice"):                   unreadable,
		parts(strings.ReplaceAll(alice, "\r\n", "\n")):                                         unreadable,
		parts(other + "\n--B\r\n" + alice):                                                     unreadable, // which PHP takes for another part
		parts(other + "\r--B\r" + alice):                                                       unreadable,
		parts(other + "\r\n--B \r\n" + alice):                                                  unreadable,
		parts(other + "\r\n--Bx\r\n" + alice):                                                  unreadable,
		parts(other + "\r\n--B--x\r\n" + alice):                                                unreadable,
		parts(other) + alice:                                                                   unreadable,
		parts(other) + parts(alice):                                                            unreadable,
		"preamble\r\n" + parts(alice):                                                          unreadable,
		strings.ReplaceAll(parts(alice), "\r\n", "\n"):                                         unreadable,
		"--B\r\n" + alice:                                                                      unreadable,
		"":                                                                                     unreadable,
		// What a server takes for another field, or for the name, of a part that may have none here:
		parts("Content-ID: user\r\n\r\nalice"):                                                                                               ambiguous,
		parts("Content-Disposition: form-data\r\nContent-ID: user\r\n\r\nalice"):                                                             ambiguous,
		parts("Content-Disposition: form-data; x=\"; name=user; y=\"\r\n\r\nalice"):                                                          unreadable,
		parts("Content-Disposition: form-data\r\n\r\nx", alice):                                                                              "alice",
		parts("X: Content-Disposition: x; name=user\r\n\r\nalice"):                                                                           unreadable,
		parts("Content-Type: Content-Disposition: x; name=user\r\n\r\nalice"):                                                                unreadable,
		parts("Content-Type: text/plain; x=\"" + strings.Repeat("a", 5090) + "\"Content-Disposition: form-data; name=\"user\"\r\n\r\nalice"): unreadable,
		parts("Content-Type: text/plain; x=\"" + strings.Repeat("a", 4080) + "\"\r\n" + alice):                                               unreadable,
		parts("Content-Type: text/plain; x=\"" + strings.Repeat("a", 4000) + "\"\r\n" + alice):                                               "alice",
		parts("Content-Type: text/plain\r\nContent-Type: text/plain\r\n" + alice):                                                            unreadable,
		parts("MIME-Version: 1.0\r\nContent-ID: <1>\r\n"+alice, "X-File-Path: /a\r\n\r\nx"):                                                  "alice",
		parts(strings.Repeat("X: a\r\n", 40) + alice):                                                                                        unreadable,
		disposition("name=\"user\";\u00a0name*=utf-8''text"):                                                                                 unreadable, // which Go takes for the end of a word
		disposition(`name="=?utf-8?B?dXNlcg==?="`):                                                                                           unreadable, // to Tomcat and ASP.NET, user
		disposition(`name="=?utf-8?Q?user?="; filename="x"`):                                                                                 unreadable,
		disposition(`name="f"; filename="=?utf-8?B?eA==?="; filename*=utf-8''x`):                                                             none,
		disposition(`x-name="user"; name="text"`):                                                                                            unreadable, // to formidable
		disposition(`xname="user"`):                                                                                                          unreadable, // to ASP.NET
		disposition(`name="user;x"`):                                                                                                         unreadable,
		disposition(`name="/user"`):                                                                                                          ambiguous,
		disposition(`name="text"; filename="a; name=user"`):                                                                                  unreadable,
		disposition(`name="text"; filename="a\"b"`):                                                                                          none,
		disposition("name=\"user\"\u00a0"):                                                                                                   unreadable,
		disposition(`name=""`):                                                                                                               unreadable,
		parts(`Content-Disposition: form-data; name="model.user"`+"\r\n\r\nx", alice):                                                        ambiguous,
		disposition(`name="model.user"`):                                                                                                     ambiguous,
		disposition(`filename="user"`):                                                                                                       ambiguous, // Rack takes the file's name, or the type, for the name
		parts("Content-Disposition: attachment; filename=x\r\n\r\nx", alice):                                                                 "alice",
		parts("Content-Type: user\r\n\r\nalice"):                                                                                             ambiguous,
		parts("Content-Type: Content-ID: user\r\n\r\nalice"):                                                                                 unreadable,
		parts("Content-Disposition: form-data; name=\"f\"; filename=\"content-type.txt\"\r\nContent-Type: text/plain\r\n\r\nx", alice):       "alice",
		parts("Content-Type: text/plain; charset=ISO-8859-1\r\n" + alice):                                                                    "alice",
		parts("Content-Type: text/plain; charset=US-ASCII\r\n" + alice):                                                                      "alice",
		parts("Content-Type: text/plain; charset=ISO-8859-1\r\n" + alice + "\xe9"):                                                           ambiguous,
		"--B--\r\n":                none, // a form without fields
		"--B--\r\n--B\r\n" + alice: unreadable,
		"--C--\r\n":                unreadable,
		parts("X: a\r\n" + alice):  "alice",
		parts("Content-D\u0130sposition: form-data; name=\"user\"\r\n\r\nalice"): unreadable,
		parts("Content-Length: 5\r\n"+alice, other):                              "alice",
		parts("content-length: 4\r\n" + alice):                                   unreadable,
		parts("Content-Length: 1\r\n"+other+"\r\n--", alice):                     unreadable,
		parts("Content-Length: 05\r\n" + alice):                                  unreadable,
		parts(alice + strings.Repeat("a", 17000)):                                unreadable,
		parts(other + strings.Repeat("x", 8192-4-1) + "--B\r\n" + alice):         unreadable,
		parts(other + strings.Repeat("x", 4096-4-1) + "--B\r\n" + alice):         unreadable,
		parts("Content-Disposition: attachment; name=user\r\n\r\nalice"):         ambiguous,
		parts("Content-Type: multipart/mixed; boundary=C\r\n" + alice):           unreadable,
		disposition(`name="[user"`):                                              ambiguous,
	} {
		assert.Equal(t, want, inBody(t, &loginname.Finder{Field: "user"}, "multipart/form-data; boundary=B", body), "%.200q", body)
	}
}

func TestPartsWithinAPartAreNotRead(t *testing.T) {
	decoy, nested := strings.Replace(alice, "alice", "decoy", 1), strings.ReplaceAll(parts(alice), "--B", "--C")
	for _, kind := range []string{
		"multipart/mixed; boundary=C", `Multipart/Form-Data; boundary="C"`, "text/plain; x=multipart/mixed; boundary=C",
		"multipart; boundary=C", // enough for Mojolicious
	} {
		for _, disposition := range []string{"Content-Disposition: form-data; name=text\r\n", ""} {
			part := disposition + "Content-Type: " + kind + "\r\n\r\n" + nested
			for _, body := range []string{parts(part), parts(decoy, part), parts(part, decoy)} {
				f := &loginname.Finder{Field: "user"}
				assert.Equal(t, unreadable, inBody(t, f, "multipart/form-data; boundary=B", body), body)
			}
		}
	}
}

func TestTheNameInJSON(t *testing.T) {
	const kind = "application/json"
	for body, want := range map[string]string{
		`{"user": {"name": "alice", "password": "x"}}`:                                   "alice",
		`{"a": [{"user": {"name": "x"}}, 1], "\u0075ser": {"n\u0061me": "al\u0069ce"}} `: "alice",
		`{"user": {"name": ""}}`:        "",
		`{}`:                            none,
		`{"user": {}}`:                  none,
		`{"name": "alice"}`:             none,
		`[{"user": {"name": "alice"}}]`: none,
		`"user"`:                        none,
		`{"user": {"name": "alice", "name": "bob"}}`: ambiguous,
		`{"user": {"name": "alice", "Name": "bob"}}`: ambiguous,
		`{"user": {"Name": "bob"}}`:                  ambiguous,
		`{"USER": {"name": "bob"}}`:                  ambiguous,
		`{"user": {}, "user": {"name": "bob"}}`:      ambiguous,
		`{"user": {"name": "alice"}, "user": 1}`:     ambiguous,
		`{"user": "alice"}`:                          ambiguous,
		`{"user": {"name": 1}}`:                      ambiguous,
		`{"user": {"name": null}}`:                   ambiguous,
		`{"user": {"name": ["alice"]}}`:              ambiguous,
		`{"user": {"name": "alice\u0000"}}`:          ambiguous,
		"{\"user\": {\"name\": \"al\xffice\"}}":      ambiguous,
		`{"user": {"name": "al\udc00ice"}}`:          ambiguous,
		// A server may end a key at a NUL, or leave out what is no UTF-8:
		`{"user": {"name\u0000": "alice", "name": "decoy"}}`:                                ambiguous,
		`{"user\u0000x": {"name": "alice"}, "user": {"name": "decoy"}}`:                     ambiguous,
		`{"user": {"name\u0000": "alice"}}`:                                                 ambiguous,
		`{"user": {"name": "decoy"}, "us\ud800er": {"name": "alice"}}`:                      ambiguous,
		"{\"user\": {\"na\xffme\": \"alice\"}}":                                             ambiguous,
		"{\"user\": {\"na\ufffdme\": \"alice\"}}":                                           ambiguous,
		"{\"user\": {\"name\": \"alice\", \"x\": {\"\xff\": 1}}, \"y\": {\"a\\u0000\": 2}}": "alice",
		`{"user": {"name": "alice"}} {}`:                                                    unreadable,
		`{"user": {"name": "alice"}}}`:                                                      unreadable,
		`{"user": {"name": "alice"}`:                                                        unreadable,
		`{"user"`:                                                                           unreadable,
		`{"a": `:                                                                            unreadable,
		"":                                                                                  unreadable,
		"\ufeff{}":                                                                          unreadable,
		"{\x00\"\x00}\x00":                                                                  unreadable,
		`{'user': 1}`:                                                                       unreadable,
		strings.Repeat("[", 300):                                                            unreadable,
		`{"user": {"name": "alice"}, "a": "` + strings.Repeat("x", 900_000) + `"}`: "alice",
		`{"a": 1e999, "user": {"name": "alice"}}`:                                  "alice",
	} {
		f := &loginname.Finder{Keys: []string{"user", "name"}}
		assert.Equal(t, want, inBody(t, f, kind, body), "%.60s", body)
	}
	for kind, want := range map[string]string{"application/problem+json": unreadable, "text/plain": none, "": none, urlencoded: none} {
		assert.Equal(t, want, inBody(t, &loginname.Finder{Keys: []string{"user"}}, kind, "hello"), kind)
		assert.Equal(t, "alice", inBody(t, &loginname.Finder{Keys: []string{"user"}}, kind, `{"user": "alice"}`), kind)
	}
}

func TestTextsInJSONMayBeLongButForKeysAndTheName(t *testing.T) {
	long := func(length int, piece string) string { return strings.Repeat(piece, length/len(piece)) }
	for _, piece := range []string{"a", "\u00e4", `\"`, `\\`, `\/`, `\u00e4`, `\ud83d\ude00`, "\U0001f600"} {
		for body, want := range map[string]string{
			`{"x": "` + long(900_000, piece) + `", "user": "alice"}`:               "alice",
			`{"x": ["` + long(20_000, piece) + `", {"user": "x"}], "y": "\""}`:     none,
			`{"x": {"` + long(20_000, piece) + `": 1}, "user": "alice"}`:           "alice",
			`{"user": "` + long(20_000, piece) + `"}`:                              unreadable,
			`{"` + long(20_000, piece) + `": 1, "user": "alice"}`:                  unreadable,
			`{"x": "` + long(20_000, piece) + `", "user": "alice", "user": "bob"}`: ambiguous,
			`{"x": "` + long(20_000, piece) + "\n" + `", "user": "alice"}`:         unreadable,
			`{"x": "` + long(20_000, piece) + `\u00", "user": "alice"}`:            unreadable,
			`{"x": "` + long(20_000, piece) + `\x", "user": "alice"}`:              unreadable,
			`{"x": "` + long(20_000, piece):                                        unreadable,
			`{"x": "` + long(20_000, piece) + `\`:                                  unreadable,
		} {
			f := &loginname.Finder{Keys: []string{"user"}}
			assert.Equal(t, want, inBody(t, f, "application/json", body), "%.20s %s", body, body[max(0, len(body)-40):])
		}
	}
	for length := 16<<10 - 40; length < 16<<10+20; length++ { // wherever the escapes are cut
		f := &loginname.Finder{Keys: []string{"user"}}
		body := `{"x": "` + strings.Repeat("a", length) + `\u0022, \"user\": \"x\\", "user" : "alice"}`
		assert.Equal(t, "alice", inBody(t, f, "application/json", body), length)
	}
	for body, want := range map[string]string{
		`{"x": ` + strings.Repeat("1", 10_000) + `, "user": "alice"}`:  "alice",
		`{"x": ` + strings.Repeat("1", 100_000) + `, "user": "alice"}`: unreadable,
		strings.Repeat(" \r\n\t", 50_000) + `{"x"` + strings.Repeat(" ", 200_000) + `: 1 , "y":["  a"  , 2]` + strings.Repeat("\n", 200_000) + `, "user": "al  ice"}` + strings.Repeat(" ", 200_000): "al  ice",
		`{"x": 1` + strings.Repeat(" ", 100) + `2, "user": "alice"}`:   unreadable,
		`{"x": tru` + strings.Repeat(" ", 100) + `e, "user": "alice"}`: unreadable,
	} {
		f := &loginname.Finder{Keys: []string{"user"}}
		assert.Equal(t, want, inBody(t, f, "application/json", body), "%.20s", body)
	}
}

// What is left out of a long text makes JSON neither right nor wrong.
func TestLongJSONIsReadIfItIsValid(t *testing.T) {
	long := strings.Repeat("a", 16<<10-5)
	pieces := []string{long, long, `"`, `"`, `"`, `\`, `\"`, `\u00e4`, `\u`, "00", "e4", "aa", "\n", " ", "\t", "\x7f", "\xff", "\u00e4", ",", ":", "{", "}", "[", "]", "1", "true", "\x00"}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 12).Draw(t, "text"), "")
		if rapid.Bool().Draw(t, "in an array") {
			text = `[ "` + text + `" ,1]`
		}
		f := &loginname.Finder{Keys: []string{"user"}}
		scan, err := f.Body(http.Header{"Content-Type": {"application/json"}})
		require.NoError(t, err)
		_, err = scan.Inspect(io.NopCloser(strings.NewReader(text)), 1<<20)
		require.Equal(t, json.Valid([]byte(text)), err == nil, "%q: %v", text, err)
	})
}

func TestWhatBeginsAsAnObjectMayBeOneToAServerWhateverItsType(t *testing.T) {
	const object = `{"user": "alice"}`
	deep := `{"x": ` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `, "user": "alice"}`
	for body, want := range map[string]string{
		deep:                             unreadable, // here, but not to PHP
		`{"x": NaN, "user": "alice"}`:    unreadable, // but not to Python
		" \n\t" + object:                 "alice",
		"\ufeff" + object:                "alice",
		"/* */ " + object:                "alice",
		"/* {} * /**/" + object:          "alice",
		"// {}\n# {}\r\n" + object:       "alice",
		object[:1] + "/**/" + object[1:]: unreadable, // but not to Ruby
		"\xff\xfe{\x00\"\x00":            unreadable, // UTF-16
		"\x00{\x00\"":                    unreadable,
		"{{template}}":                   unreadable,
		"# a text\n":                     none,
		"/* a program */ #include":       none,
		"/* {":                           none,
		"/":                              none,
		"/usr/bin\n":                     none,
		"\x00\x00\x00\x1cftyp":           none,
		"[" + object + "]":               none,
		"hello " + object:                none,
		"":                               none,
	} {
		assert.Equal(t, want, inBody(t, &loginname.Finder{Keys: []string{"user"}}, "text/plain", body), "%.60q", body)
	}
	f := &loginname.Finder{Keys: []string{"user"}}
	scan, err := f.Body(http.Header{"Content-Type": {"text/plain"}})
	require.NoError(t, err)
	passed, err := scan.Inspect(io.NopCloser(strings.NewReader(`{"x": "`+strings.Repeat("x", 2<<20)+`", "user": "alice"}`)), 64<<10)
	require.NoError(t, err)
	f.Seal()
	_, err = io.Copy(io.Discard, passed)
	assert.ErrorIs(t, err, loginname.ErrAmbiguous, "a name behind a long text")
	for body, untyped := range map[string]string{
		"/**/" + object: "alice", "#\n" + object: "alice", ")]}'\n" + object: "alice", "\u00a0" + object: "alice", " " + strings.Repeat("\n", 100) + object: "alice",
		"\x00{\x00": unreadable, "\x00 \x00{&user=decoy&": unreadable, "\f{&user=decoy&": unreadable, "\x89PNG&user=x": none, "\xc3\xa9=1": none,
	} {
		for kind, want := range map[string]string{"": untyped, urlencoded: ambiguous, "text/plain": untyped} {
			assert.Equal(t, want, inBody(t, &loginname.Finder{Field: "user", Keys: []string{"user"}}, kind, body), "%s %.60q", kind, body)
		}
	}
}

func TestABodyWithoutATypeThatCannotBeReadMayBeAFormToAServer(t *testing.T) {
	long := strings.Repeat("a", 5000) + "=1&user=alice"
	for body, want := range map[string]bool{long: true, "a%zz=1&user=alice": true, "a=1&b=2": false, "user=alice": false, "": false, "a=" + strings.Repeat("a", 1<<20): true} {
		f := &loginname.Finder{Field: "user"}
		scan, err := f.Body(http.Header{})
		require.NoError(t, err)
		passed, err := scan.Inspect(io.NopCloser(strings.NewReader(body)), 64<<10)
		require.NoError(t, err)
		assert.Equal(t, want, scan.Unread(passed), "%.40s", body)
		assert.NoError(t, passed.Close())
	}
	for kind, want := range map[string]bool{urlencoded: false, "": true} {
		f := &loginname.Finder{Field: "user", Keys: []string{"user"}}
		scan, err := f.Body(http.Header{"Content-Type": {kind}})
		require.NoError(t, err)
		passed, err := scan.Inspect(io.NopCloser(strings.NewReader("a=1")), 1)
		require.NoError(t, err)
		assert.Equal(t, want, scan.Unread(passed), "a long one")
		assert.NoError(t, passed.Close())
	}
	f := &loginname.Finder{Field: "user", Keys: []string{"user"}}
	scan, err := f.Body(http.Header{})
	require.NoError(t, err)
	passed, err := scan.Inspect(io.NopCloser(strings.NewReader(`{"user": "mallory", "x": "&user=alice&"}`)), 1<<10)
	assert.Equal(t, "mallory", found(t, f, err))
	assert.True(t, scan.Unread(passed), "a form of alice, to Rack")
}

func TestAFormMayBeJSONToAServer(t *testing.T) {
	const text = `{"user": "alice", "x": "&user=mallory&"}`
	for kind, want := range map[string]string{urlencoded: ambiguous, "": "alice", "text/plain": "alice", "application/json": "alice"} {
		assert.Equal(t, want, inBody(t, &loginname.Finder{Field: "user", Keys: []string{"user"}}, kind, text), kind)
	}
	assert.Equal(t, ambiguous, inBody(t, &loginname.Finder{Field: "user", Keys: []string{"user"}}, urlencoded, strings.Repeat("\n", 1000)+text))
	assert.Equal(t, "mallory", inBody(t, &loginname.Finder{Field: "user"}, urlencoded, text), "not to one that takes forms alone")
	assert.Equal(t, none, inBody(t, &loginname.Finder{Field: "user"}, "", "\x89PNG%\x00&user=x"), "what has no type may be anything")
}

func TestABodyThatCannotBeReadBehindItsNameHasPerhapsAnother(t *testing.T) {
	const text = `{"user": "mallory", /* */ "user": "alice"}`
	assert.Equal(t, unreadable, inBody(t, &loginname.Finder{Keys: []string{"user"}}, "text/plain", text))
	f := &loginname.Finder{Field: "user", Keys: []string{"user"}}
	require.NoError(t, f.Query("user=mallory"))
	assert.Equal(t, "mallory", inBody(t, f, "text/plain", "a file"), "the name is not of this body")
}

func TestTheNameOfBasicAuthentication(t *testing.T) {
	const credentials = "YWxpY2U6c2VjcmV0" // alice:secret
	for value, want := range map[string]string{
		"Basic " + credentials:       "alice",
		"bAsIc " + credentials:       "alice",
		"":                           none,
		"Basic":                      ambiguous,
		"Basic " + credentials + " ": ambiguous,
		"Basic  " + credentials:      ambiguous,
		"Basic\t" + credentials:      ambiguous,
		"Basic YWxpY2U":              ambiguous,
		"Basic YWxpY2U=":             ambiguous, // no colon
		"Bearer" + credentials:       ambiguous,
		"Bearer " + credentials:      ambiguous,
		"Basic AGE6YQ==":             ambiguous, // NUL
	} {
		h := http.Header{}
		if value != "" {
			h.Set("Authorization", value)
		}
		f := &loginname.Finder{}
		assert.Equal(t, want, found(t, f, f.Basic(h)), value)
	}
	f := &loginname.Finder{}
	assert.Equal(t, ambiguous, found(t, f, f.Basic(http.Header{"Authorization": {"Basic " + credentials, "Basic " + credentials}})))
	f = &loginname.Finder{Field: "user"}
	require.NoError(t, f.Basic(http.Header{"Authorization": {"Basic " + credentials}}))
	assert.Equal(t, ambiguous, inBody(t, f, urlencoded, "user=alice"), "both")
}

func FuzzAFormHasOneNameForEveryServer(f *testing.F) {
	f.Add("user=alice&p=x;user=b")
	f.Fuzz(func(t *testing.T, body string) {
		name := inBody(t, &loginname.Finder{Field: "user"}, urlencoded, body)
		values, err := url.ParseQuery(body)
		if err != nil || name == ambiguous || name == unreadable {
			return
		}
		if name == none {
			assert.Empty(t, values["user"])
			return
		}
		assert.Equal(t, []string{name}, values["user"])
	})
}

func FuzzAMultipartFormHasOneNameForEveryServer(f *testing.F) {
	f.Add(parts(other, alice))
	f.Add(parts(other + "\n--B\r\n" + alice))
	f.Fuzz(func(t *testing.T, body string) {
		name := inBody(t, &loginname.Finder{Field: "user"}, "multipart/form-data; boundary=B", body)
		if name == ambiguous || name == unreadable {
			return
		}
		form, err := multipart.NewReader(strings.NewReader(body), "B").ReadForm(1 << 20)
		if err != nil {
			return
		}
		if name == none {
			assert.Empty(t, form.Value["user"])
			return
		}
		assert.Equal(t, []string{name}, form.Value["user"])
	})
}
