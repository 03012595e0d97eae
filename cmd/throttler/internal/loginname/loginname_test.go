package loginname_test

import (
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/loginname"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a Finder makes of a body, besides a name.
const (
	none    = "(none)"
	refused = "(refused)"
	unread  = "(of another type)"
)

// read is what f makes of a body.
func read(t require.TestingT, f *loginname.Finder, contentType, body string) (string, *loginname.Body) {
	b, err := f.Read(contentType, []byte(body), false)
	switch {
	case errors.Is(err, loginname.ErrOtherType):
		return unread, nil
	case err != nil:
		require.ErrorIs(t, err, loginname.ErrUnreadable)
		require.Contains(t, err.Error(), ": ", "the error says why")
		return refused, nil
	case !b.Named:
		return none, b
	}
	return b.Name, b
}

const (
	urlencoded = "application/x-www-form-urlencoded"
	inParts    = "multipart/form-data; boundary=B"
	inJSON     = "application/json"
)

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

// disposed is a form of one part with a Content-Disposition.
func disposed(text string) string {
	return parts("Content-Disposition: form-data; " + text + "\r\n\r\nalice")
}

// Requests that attackers have sent, or may send, and honest ones beside them: what is found in
// them, and, if it matters, what is sent on.
func TestTheNameOfABody(t *testing.T) {
	form := func(field string) *loginname.Finder { return loginname.New(field, nil) }
	object := func(keys ...string) *loginname.Finder { return loginname.New("", keys) }
	both := loginname.New("user", []string{"user"})
	type row struct{ body, want, sent string }
	for _, c := range []struct {
		what string
		in   *loginname.Finder
		kind string
		rows []row
	}{
		{"a form", form("user"), urlencoded, []row{
			{"user=alice&p=x", "alice", "user=alice&p=x"},
			{"p=x&user=al%69ce", "alice", "p=x&user=alice"},
			{"p=x&user=al+ice%2B", "al ice+", "p=x&user=al+ice%2B"},
			{"us%65r=alice", "alice", "user=alice"},
			{"user=", "", "user="},
			{"user", "", "user"},
			{"p=x&q", none, "p=x&q"},
			{"p=1&p=2&p[]=3", none, "p=1&p=2&p%5B%5D=3"},
			{"users=a&xuser=b&user_id=7&user-x=8", none, ""},
			{"x=1;user=alice", none, "x=1%3Buser%3Dalice"}, // which no server takes for the name
			{"user=alice;x=1", "alice;x=1", "user=alice%3Bx%3D1"},
			{`{"x":"alice"}`, none, "%7B%22x%22%3A%22alice%22%7D"}, {`{"user":"alice"}`, refused, ""}, // no JSON to any server
			{"p=%ff&é=\x80", none, "p=%FF&%C3%A9=%80"},
			{"user=alice&user=bob", refused, ""}, {"user=alice&user=alice", refused, ""},
			{"user=alice&USER=bob", refused, ""}, {"User=alice", refused, ""}, {"user[]=alice", refused, ""},
			{"user[a][b]=alice", refused, ""}, {"[user=alice", refused, ""}, {"user]=alice", refused, ""}, {"user%5D%5B=alice", refused, ""}, // Rack
			{"+user=alice", refused, ""}, {"user+=alice", refused, ""}, {"user%00=alice", refused, ""}, {"user%00x=alice", refused, ""},
			{"?user=alice", refused, ""}, {"'user'=alice", refused, ""}, {"%22user%22=alice", refused, ""}, {"!user=alice", refused, ""}, // Spring
			{"user:string=alice", refused, ""}, {"user.x=alice", refused, ""}, {"u%C5%BFer=alice", refused, ""}, {"\ufeffuser=alice", refused, ""}, {"us%ffer=alice", refused, ""},
			{"user=alice%00x", refused, ""}, {"user=ad%99min", refused, ""}, {"user=\ufffd", refused, ""},
			{"user=%zz", refused, ""}, {"us%er=alice", refused, ""}, {"p=%", refused, ""},
			{"_charset_=UTF-8&user=alice", "alice", ""}, {"user=alice&_charset_=", "alice", ""},
			{"user=alice&_charset_=ibm037", refused, ""}, {"%5Fcharset_=utf%2D16&p=x", refused, ""},
			{"user=decoy&model.user=alice", refused, ""}, {"model[User][]=alice", refused, ""}, {"x=1&MODEL[User][]=alice", refused, ""}, // ASP.NET
			{"model.username=y&a.b.user=y", none, ""},
		}},
		{"a field with punctuation", form("log.in"), urlencoded, []row{
			{"log.in=alice", "alice", ""}, {"log_in=alice", refused, ""}, {"log in=alice", refused, ""}, {"log[in=alice", refused, ""}, {"log=alice&login=x", none, ""},
		}},
		{"a field with an underscore", form("user_name"), urlencoded, []row{
			{"user.name[]=alice", refused, ""}, {"user name[x]=alice", refused, ""}, {"user_name.x=alice", refused, ""}, {"user_names[]=alice&username=x", none, ""},
		}},
		{"a field in brackets", form("user[name]"), urlencoded, []row{
			{"user[name]=alice&user[password]=x", "alice", "user%5Bname%5D=alice&user%5Bpassword%5D=x"},
			{"user[NAME]=alice", refused, ""}, {"[user][name]=alice", refused, ""}, {"user[name][]=alice", refused, ""}, {"user[name]x=alice", refused, ""},
			{"user[name=alice", refused, ""}, {"user.name=alice", refused, ""}, {"[user].name=alice", refused, ""}, {"user]name=alice", refused, ""},
			{"user=x&username=y&name=z&user[name_format]=x&user[first][name]=y&user[]=z", none, ""},
		}},
		{"a field of an object of ASP.NET", form("Input.Email"), urlencoded, []row{
			{"Input.Email=alice&Input.Password=x", "alice", ""}, {"Input.Email=decoy&Input[Email]=alice", refused, ""}, {"email=alice", refused, ""},
			{"Input.Email=decoy&Email=alice", refused, ""}, {"Model.Input.Email=alice", refused, ""}, {"EmailAgain=x&Input.EmailAgain=x&Output.Email=x&Input=x", none, ""},
		}},
		{"an index", form("Logins[0].Account"), urlencoded, []row{{"Account=x", none, ""}, {"Logins[0].Account=alice", "alice", ""}}},
		{"punctuation alone", form("_"), urlencoded, []row{{"_=alice", "alice", ""}, {"__=x", refused, ""}, {"a=b", none, ""}}},
		{"parts", form("user"), inParts, []row{
			{parts(alice), "alice", parts(alice)}, {parts(other, alice, other), "alice", parts(other, alice, other)}, {parts(other), none, ""}, {"--B--\r\n", none, ""},
			{disposed("name=user"), "alice", parts(alice)}, {disposed("NAME*=utf-8''us%65r"), "alice", parts(alice)}, {disposed(`name="us\er"`), refused, ""}, {disposed("name*0=us; name*1=er"), "alice", parts(alice)},
			{parts(strings.ReplaceAll(alice, "\r\n", "\n")), "alice", parts(alice)}, {"preamble\r\n" + parts(alice), "alice", parts(alice)}, {parts(alice) + parts(other), "alice", parts(alice)},
			{parts("Content-Transfer-Encoding: base64\r\n" + alice), "alice", parts(alice)}, {parts("Content-Transfer-Encoding: quoted-printable\r\n" + alice + "=21"), "alice!", ""},
			{parts("X: y\r\nContent-ID: user\r\nContent-Length: 1\r\n" + other), none, parts(other)},
			{parts("Content-Type: text/plain; charset=UTF-8\r\n" + alice), "alice", parts(alice)},
			{parts(other + "\n--B\r\n" + alice), none, ""}, // PHP takes that for another part, but gets another boundary
			{parts(other + strings.Repeat("x\n", 9000)), none, ""},
			{parts(alice, alice), refused, ""}, {disposed(`name="User"`), refused, ""}, {disposed(`name="'user'"`), refused, ""}, {disposed(`name="user[]"`), refused, ""},
			{disposed(`name="user"; filename="x"`), refused, ""}, {disposed(`name=f; filename="x"`), refused, ""}, {disposed(`name="user"; name="x"`), refused, ""}, {disposed(`name="user`), refused, ""},
			{disposed(`name="x\"; name=\"user"`), refused, ""}, {disposed(`name="=?utf-8?Q?user?="`), refused, ""}, {disposed(`name=""`), refused, ""}, {disposed(`name="a%5c"; x=y`), none, ""},
			{parts("Content-ID: user\r\n\r\nalice"), refused, ""}, {parts("Content-Disposition: attachment; name=user\r\n\r\nalice"), refused, ""},
			{parts("Content-Type: text/plain; charset=utf-16\r\n" + alice), refused, ""}, {parts("Content-Type: multipart/mixed; boundary=C\r\n" + other), refused, ""},
			{disposed("name=_charset_"), refused, ""}, {parts("Content-Disposition: form-data; name=_charset_\r\n\r\nUTF-8", alice), "alice", ""},
			{parts(strings.Replace(alice, "alice", "a\xff", 1)), refused, ""}, {"--B\r\n" + alice, refused, ""}, {"--C\r\n" + alice, refused, ""},
		}},
		{"JSON", object("user"), inJSON, []row{
			{`{"p": 1, "user": "alice"}`, "alice", `{"p":1,"user":"alice"}`}, {`{"us\u0065r": "\u0061lice"}`, "alice", `{"user":"alice"}`}, {`{"user": ""}`, "", ""},
			{`{"user": "decoy", "user": "alice"}`, "alice", `{"user":"alice"}`}, // the last, alone
			{`{"x": {"user": "y"}, "users": 1e999, "n": 12345678901234567890}`, none, `{"n":12345678901234567890,"users":1e999,"x":{"user":"y"}}`},
			{`{"x": "&user=alice&"}`, none, `{"x":"\u0026user=alice\u0026"}`}, // no form to any server
			{`[{"user": "alice"}]`, none, ""}, {`null`, none, ""}, {`"user"`, none, ""}, {`{}`, none, ""}, {" {}\n", none, ""},
			{`{"user": "alice", "USER": "bob"}`, refused, ""}, {`{"User": "alice"}`, refused, ""}, {`{"user\u0000x": "alice"}`, refused, ""}, {`{"\ufeffuser": 1}`, refused, ""}, {"{\"us\xffer\": 1}", none, ""},
			{`{"user": 1}`, refused, ""}, {`{"user": null}`, refused, ""}, {`{"user": ["alice"]}`, refused, ""}, {`{"user": "alice\u0000"}`, refused, ""}, {`{"user": "\ud800"}`, refused, ""}, {"{\"user\": \"a\xff\"}", refused, ""},
			{`{"user": `, refused, ""}, {`{"user": "alice"} {}`, refused, ""}, {`{"user": "alice"}x`, refused, ""}, {`{"x": NaN, "user": "alice"}`, refused, ""}, {`{/**/"user": "alice"}`, refused, ""},
			{"\ufeff{}", refused, ""}, {"{\x00", refused, ""}, {" ", refused, ""}, {strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), refused, ""},
		}},
		{"an object in JSON", object("user", "name"), "application/vnd.api+json; charset=utf-8", []row{
			{`{"user": {"name": "alice"}}`, "alice", ""}, {`{"user": {"x": 1}}`, none, ""}, {`{"x": 1}`, none, ""},
			{`{"user": "alice"}`, refused, ""}, {`{"user": {"Name": "alice"}}`, refused, ""}, {`{"User": {}}`, refused, ""}, {`{"user.name": "alice"}`, refused, ""}, {`{"user": [{"name": "alice"}]}`, refused, ""},
		}},
		{"JSON of another type", object("user"), "text/plain", []row{
			{" \n\t" + `{"user": "alice"}`, "alice", `{"user":"alice"}`}, {"/* */ {}", refused, ""}, {"#!/bin/sh", refused, ""}, {")]}'\n{}", refused, ""}, {"\ufeff{", refused, ""}, {"\xff\xfe{\x00", refused, ""},
			{"\u00a0{}", refused, ""}, {"\x00{", refused, ""}, {"hello {", unread, ""}, {"[{}]", unread, ""}, {"\x89PNG", unread, ""}, {"", unread, ""},
		}},
		{"JSON where forms are too", both, "", []row{{`{"user": "alice"}`, "alice", ""}, {"user=alice", unread, ""}}},
		{"a form where JSON is too", both, urlencoded, []row{{"user=alice", "alice", ""}, {`{"user": "alice"}`, refused, ""}}},
		{"a form where only JSON is", object("user"), urlencoded, []row{{"user=alice", unread, ""}, {`{"user": "alice"}`, "alice", `{"user":"alice"}`}}},
	} {
		for _, r := range c.rows {
			name, b := read(t, c.in, c.kind, r.body)
			assert.Equal(t, r.want, name, "%s: %.80q", c.what, r.body)
			if r.sent == "" || b == nil {
				continue
			}
			sent := string(b.Text)
			if _, boundary, found := strings.Cut(b.Type, "boundary="); found {
				sent = strings.ReplaceAll(sent, boundary, "B")
			}
			assert.Equal(t, r.sent, sent, "%s: %.80q", c.what, r.body)
		}
	}
}

func TestTheTypeOfABody(t *testing.T) {
	for kind, want := range map[string][2]string{ // what is found, and the type to send
		urlencoded:                                        {"alice", urlencoded},
		"Application/X-WWW-Form-Urlencoded":               {"alice", urlencoded},
		urlencoded + "; charset=UTF-8":                    {"alice", urlencoded + "; charset=UTF-8"},
		urlencoded + `; x="charset=utf-7;"`:               {"alice", urlencoded + "; charset=UTF-8"},
		urlencoded + "; charset=utf-16":                   {refused},
		urlencoded + "; charset=a; charset=b":             {refused},
		urlencoded + ", text/plain":                       {refused},
		urlencoded + "; x":                                {refused},
		"text/plain":                                      {unread},
		"text/plain; charset=latin1":                      {unread},
		"":                                                {unread},
		"text/urlencoded":                                 {refused},
		"application/x-url-encoded":                       {refused}, // a form to Werkzeug
		"multipart/related; boundary=B":                   {refused}, // one to Rack
		`text/plain; a="multipart/form-data; boundary=B"`: {refused},
		"multipart/form-data":                             {refused},
	} {
		name, b := read(t, loginname.New("user", nil), kind, "user=alice")
		assert.Equal(t, want[0], name, kind)
		if b != nil {
			assert.Equal(t, want[1], b.Type, kind)
		}
	}
	for kind, want := range map[string]string{
		inParts: "alice", `Multipart/Form-Data;boundary="B"`: "alice", "multipart/form-data; charset=utf-8; boundary=B": "alice",
		`multipart/form-data; x="boundary=C;"; boundary=B`: "alice", "multipart/form-data; boundary=B; boundary=C": refused, "multipart/form-data; boundary=C": refused,
	} {
		name, _ := read(t, loginname.New("user", nil), kind, parts(alice))
		assert.Equal(t, want, name, kind)
	}
	f := loginname.New("user", []string{"user"})
	for kind, want := range map[string]bool{urlencoded: true, inJSON: true, "a/b+json": true, inParts: false, "text/plain": false, "": false, "a b": false} {
		assert.Equal(t, want, f.IsWhole(kind), kind)
	}
}

func TestTheNameIsTakenOutOfAQuery(t *testing.T) {
	for raw, want := range map[string]string{
		"": "", "a=b": "a=b", "a=%zz;b&c=%20": "a=%zz;b&c=%20", "next=%2F&user=alice": "next=%2F", "user=alice&a=b": "a=b", "user": "", "a;user=alice;b": "a;b",
		"us%65r=x&USER=y&user[]=z&model.user=a&users=b&user_id=c": "users=b&user_id=c", "a&&b&": "a&&b",
		"a=b#&user=alice": refused, "user=alice HTTP/1.1": refused, "%zz=1": refused,
	} {
		rest, err := loginname.New("user", nil).Query(raw, false)
		if err != nil {
			rest = refused
		}
		assert.Equal(t, want, rest, raw)
	}
	for keys, want := range map[string]string{"user": "users=b&name=c", "user.name": "user=a&users=b&name=c"} { // Laravel and Rails
		rest, err := loginname.New("", strings.Split(keys, ".")).Query("user=a&user[name]=x&users=b&name=c&user.name=d", true)
		require.NoError(t, err)
		assert.Equal(t, want, rest, keys)
	}
	for field, want := range map[string]string{"user": "filter[user]=a&Email=b&M.Input.Email=d", "Input.Email": "filter[user]=a&Email=b&M.Input.Email=d&user=e"} {
		rest, err := loginname.New(field, nil).Query("filter[user]=a&Email=b&Input[email]=c&M.Input.Email=d&user=e", true)
		require.NoError(t, err)
		assert.Equal(t, want, strings.Replace(rest, "&Input[email]=c", "", 1), "fields of other pages stay in links: %s", field)
	}
	for path, want := range map[string]bool{"/a?user=b": true, "/a?b&user": true, "/a?b;user=": true, "/a?b?user=c": true, "/a#?user": true, "/user=a": false, "/a?users=b": false, "/a?b user=c": false, "/user#a?b": false} {
		assert.Equal(t, want, loginname.New("user", nil).InPath(path), path)
	}
	for cookie, want := range map[string]bool{"user": true, "%75ser": true, "user[]": true, "users": false, "x.user": false, "session": false, "%zz": false} {
		assert.Equal(t, want, loginname.New("user", nil).InCookie(cookie), cookie)
	}
}

// What is too long for a login is passed on while it comes, with the files that logins do not have.
func TestALongFormInPartsHasNoName(t *testing.T) {
	f := loginname.New("user", nil)
	file := "Content-Disposition: form-data; name=f; filename*=utf-8''..%2Fx%22.%C3%A9\r\nContent-Type: Image/PNG\r\n\r\n" + strings.Repeat("x", 1<<20)
	for body, want := range map[string]string{
		parts(other, file):        "",
		parts(other, file, alice): "too far behind",
		parts(file, strings.Replace(alice, "user", "User", 1)):                 "some servers take",
		parts(file, strings.Replace(alice, "user", "_charset_", 1)):            "_charset_",
		parts(file, strings.Replace(alice, `"user"`, `"user"; filename=x`, 1)): "file",
		strings.TrimSuffix(parts(other, file), "--B--\r\n"):                    "EOF",
	} {
		kind, written, ok := f.Parts(inParts, strings.NewReader(body))
		require.True(t, ok)
		text, err := io.ReadAll(written)
		assert.NotContains(t, string(text), "alice")
		if want != "" {
			assert.ErrorIs(t, err, loginname.ErrUnreadable)
			assert.ErrorContains(t, err, want)
			continue
		}
		require.NoError(t, err)
		r := &http.Request{Method: "POST", Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(string(text)))}
		require.NoError(t, r.ParseMultipartForm(4<<20))
		assert.Equal(t, url.Values{"text": {"x"}}, url.Values(r.MultipartForm.Value))
		require.Len(t, r.MultipartForm.File["f"], 1)
		got := r.MultipartForm.File["f"][0]
		assert.Equal(t, "x%22.é", got.Filename)
		assert.Equal(t, "image/png", got.Header.Get("Content-Type"))
		assert.EqualValues(t, 1<<20, got.Size)
	}
	for _, kind := range []string{urlencoded, "text/plain", "multipart/mixed; boundary=B", ""} {
		_, _, ok := f.Parts(kind, nil)
		assert.False(t, ok, kind)
	}
	_, written, _ := f.Parts(inParts, strings.NewReader(parts(file)))
	require.NoError(t, written.Close(), "a body that is not read to its end leaves nothing behind")
}

func TestTheNameOfBasicAuthentication(t *testing.T) {
	basic := func(credentials string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(credentials))
	}
	for value, want := range map[string]string{
		basic("alice:secret"): "alice", "bAsIc " + basic("alice:secret")[6:]: "alice", basic(":"): "", "": none,
		"Basic": refused, basic("alice:secret") + " ": refused, "Basic  " + basic("alice:secret")[6:]: refused, "Basic YWxpY2U": refused, basic("alice"): refused,
		"Bearer" + basic("alice:secret")[5:]: refused, basic("\x00a:a"): refused, basic("a\xff:a"): refused,
	} {
		h := http.Header{}
		if value != "" {
			h.Set("Authorization", value)
		}
		name, _, named, err := loginname.Basic(h)
		if err != nil {
			name = refused
		} else if !named {
			name = none
		}
		assert.Equal(t, want, name, value)
	}
	_, _, _, err := loginname.Basic(http.Header{"Authorization": {basic("a:b"), basic("a:b")}})
	assert.ErrorIs(t, err, loginname.ErrUnreadable)
}

func FuzzAServerReadsTheNameThatWasFound(f *testing.F) {
	f.Add(urlencoded, "user=alice&p=x;user=b")
	f.Add(inParts, parts(other, alice))
	f.Add(inParts, parts(other+"\n--B\r\n"+alice))
	f.Add(inJSON, `{"user": "alice", "x": [1e5]}`)
	finder := loginname.New("user", []string{"user"})
	f.Fuzz(func(t *testing.T, kind, body string) {
		name, b := read(t, finder, kind, body)
		if b == nil {
			return
		}
		values := netHTTP(t, "user", sent{kind: b.Type, body: string(b.Text)})
		if name == none {
			require.Empty(t, values)
		} else {
			require.Equal(t, []string{name}, values)
		}
		again, err := finder.Read(b.Type, b.Text, false)
		require.NoError(t, err)
		require.Equal(t, b.Name, again.Name, "what is sent is read alike")
	})
}
