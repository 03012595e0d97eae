package loginname_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/loginname"
	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

// This file compares what is found with what net/http, PHP and Python read of what is sent on.

// TestMain says at the end what was skipped.
func TestMain(m *testing.M) { os.Exit(skiptest.Run(m)) }

// A sent is what is sent on of a request.
type sent struct{ query, cookie, kind, body string }

// A reader returns the values that a server reads for a field, if any.
type reader func(t require.TestingT, field string, r sent) []string

// netHTTP reads as programs in Go do.
func netHTTP(t require.TestingT, field string, s sent) (values []string) {
	r, err := http.NewRequest("POST", "http://a/?"+s.query, strings.NewReader(s.body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", s.kind)
	if strings.HasPrefix(s.kind, "multipart/") {
		r.ParseMultipartForm(1 << 20)
		require.NotNil(t, r.MultipartForm)
		require.Empty(t, r.MultipartForm.File)
	}
	r.ParseForm() // a query may be malformed, and yields what is not
	object := map[string]any{}
	if json.Unmarshal([]byte(s.body), &object) == nil {
		if name, isText := object[field].(string); isText {
			values = append(values, name)
		}
	}
	return append(values, r.Form[field]...)
}

func php(t *testing.T) reader {
	path := skiptest.Program(t, "php", "php-cli")
	address, err := servertest.FreeAddr(servertest.OtherPorts)
	require.NoError(t, err)
	command := exec.Command(path, "-d", "display_errors=0", "-S", address, "testdata/reader.php")
	_, err = servertest.Start(command)
	require.NoError(t, err)
	t.Cleanup(func() { command.Process.Kill() })
	ask := func(t require.TestingT, field string, s sent) (*http.Response, error) {
		r, err := http.NewRequest("POST", "http://"+address, strings.NewReader(s.body))
		require.NoError(t, err)
		r.URL.RawQuery = s.query
		r.Header.Set("Content-Type", s.kind)
		r.Header.Set("Cookie", s.cookie)
		r.Header.Set("X-Steps", strings.NewReplacer("[", " ", "]", "", ".", "_").Replace(field))
		return http.DefaultClient.Do(r)
	}
	require.Eventually(t, func() bool {
		answer, err := ask(t, "user", sent{kind: "text/plain"})
		if err == nil {
			answer.Body.Close()
		}
		return err == nil
	}, time.Minute, 20*time.Millisecond)
	return func(t require.TestingT, field string, s sent) (values []string) {
		answer, err := ask(t, field, s)
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			value, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(line, "\n"))
			require.NoError(t, err, "%s", text)
			values = append(values, string(value))
		}
		return values
	}
}

func python(t *testing.T) reader {
	command := exec.Command(skiptest.Program(t, "python3", "python3"), "testdata/reader.py")
	in, err := command.StdinPipe()
	require.NoError(t, err)
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	command.Stderr = os.Stderr
	_, err = servertest.Start(command)
	require.NoError(t, err)
	t.Cleanup(func() { in.Close() })
	lines := bufio.NewReader(out)
	return func(t require.TestingT, field string, s sent) (values []string) {
		line, err := json.Marshal(map[string]any{"field": field, "query": s.query, "kind": s.kind, "body": []byte(s.body)})
		require.NoError(t, err)
		_, err = in.Write(append(line, '\n'))
		require.NoError(t, err)
		answer, err := lines.ReadBytes('\n')
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(answer, &values))
		return values
	}
}

// pieces are what the bodies of attackers are made of, besides pieces of honest ones.
var pieces = []string{
	"user", "User", "name", "decoy", "alice", "text", `"`, "'", "\\", ";", "; ", ":", "=", "&", "%00", "%5B", "+", "[", "]", "[]", ".", "*", "*0=", "#", "?", "/",
	" ", "\t", "\r\n", "\n", "\r", "\x00", "\u00a0", "\ufeff", "\xff", "--", "--B", "\r\n--B\r\n", "\r\n--B--\r\n", "--B--",
	"name=user", `name="user"`, "name*=utf-8''user", "name*0=us; name*1=er", "filename=x", `filename="user"`, "=?utf-8?Q?user?=", "x-name=user", "NAME=user",
	"Content-Disposition: form-data; name=user\r\n", "Content-Disposition:", "content-disposition: form-data; ", "Content-ID: user\r\n", "Content-Type: text/plain; charset=utf-16\r\n",
	"Content-Type: " + strings.Repeat("a", 5106) + "Content-Disposition: form-data; name=\"user\"\r\n", `; name="user"`, `; x="; name=user"`,
	"; boundary*=utf-8''C", "_name", "user_name[]=alice", "user[name]x=alice", "Content-Length: 1\r\n", "Content-Transfer-Encoding: base64\r\n", "X: y\r\n", strings.Repeat("a", 5105), strings.Repeat("a", 8180),
	"user=alice", "&user[]=alice", "user[name]=alice", "user.name=alice", `"user": "alice"`, `{"user": "alice"}`, ", ", "{", "}", `\u0075`, "NaN", "/**/", "_charset_=utf-16&",
}

// altered returns text with some pieces put in, doubled or left out.
func altered(t *rapid.T, text string) string {
	for range rapid.IntRange(0, 4).Draw(t, "changes") {
		at := rapid.IntRange(0, len(text)).Draw(t, "at")
		if rapid.Bool().Draw(t, "at a joint") { // else anywhere
			for at < len(text) && (at == 0 || strings.IndexByte("\n;&,{", text[at-1]) < 0) {
				at++
			}
		}
		end := min(len(text), at+rapid.SampledFrom([]int{0, 0, 0, 1, 2, 10, 60}).Draw(t, "left out"))
		piece := rapid.SampledFrom(pieces).Draw(t, "piece")
		if rapid.IntRange(0, 4).Draw(t, "doubled") == 0 {
			piece = text[at:end] + text[at:end]
		}
		text = text[:at] + piece + text[end:]
	}
	return text
}

func TestNoServerReadsAnotherNameThanWasFound(t *testing.T) {
	decoy := strings.Replace(alice, "alice", "decoy", 1)
	honest := map[string][]string{
		urlencoded: {"user=decoy&text=x", "text=x&user=decoy", "text=x&user[name]=decoy&user[text]=x", "user.name=decoy", "text=x", ""},
		inParts: {
			parts(other, decoy), parts(decoy, other), parts(other), parts(decoy, strings.TrimSuffix(other, "x")+"alice"), parts(decoy, "\r\nalice"),
			parts(other, "Content-Disposition: form-data; name=\"user[name]\"\r\nContent-Type: text/plain; charset=utf-8\r\n\r\ndecoy", other),
		},
		inJSON:       {`{"user": "decoy", "text": {"user": "x"}}`, `{"text": 1.5, "user": "decoy"}`, `{"text": []}`},
		"text/plain": {`{"user": "decoy", "text": 1}`, "user=alice"},
		"":           {`{"user": "decoy", "text": 1}`, "user=alice"},
	}
	readers := map[string]reader{"net/http": netHTTP, "PHP": php(t), "Python": python(t)}
	names := map[string]int{}
	try := func(t *rapid.T) {
		kind := rapid.SampledFrom([]string{urlencoded, urlencoded, inParts, inParts, inParts, inJSON, inJSON, "text/plain", ""}).Draw(t, "kind")
		field := rapid.SampledFrom([]string{"user", "user[name]", "user.name"}).Draw(t, "field")
		body := altered(t, rapid.SampledFrom(honest[kind]).Draw(t, "honest"))
		if kind == inParts && rapid.IntRange(0, 3).Draw(t, "type") == 0 {
			kind = "multipart/form-data" + altered(t, "; boundary=B")
		}
		query := altered(t, rapid.SampledFrom([]string{"", "", "next=x&user=alice", "user[name]=alice"}).Draw(t, "query"))
		f := loginname.New(field, []string{"user"})
		rest, err := f.Query(query, false)
		name, b := read(t, f, kind, body)
		if err != nil || b == nil || strings.ContainsFunc(query, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return // such a query comes from no client of HTTP
		}
		cookie := rapid.SampledFrom([]string{"a", "user", "user[name]", "user.name", "us%65r", "user%5B%5D"}).Draw(t, "cookie")
		if f.InCookie(cookie) {
			cookie = "b"
		}
		s := sent{query: rest, cookie: cookie + "=alice", kind: b.Type, body: string(b.Text)}
		for server, read := range readers {
			for _, value := range read(t, field, s) {
				require.True(t, b.Named, "%s reads %q, but no name was found: %+v", server, value, s)
				require.Equal(t, name, value, "%s reads it in %+v", server, s)
				names[server]++
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 10 {
			try(t)
		}
	})
	for server := range readers {
		require.NotZero(t, names[server], server)
	}
}

// What an attacker sends would be read in these ways, if it were sent on as it is.
func TestTheReadersOfServersReadWhatTheyAreKnownToRead(t *testing.T) {
	php, python := php(t), python(t)
	require.Equal(t, []string{"decoy", "alice"}, python(t, "user", sent{kind: urlencoded, body: "user=decoy&user=alice"}))
	require.Equal(t, []string{"decoy", "alice"}, netHTTP(t, "user", sent{kind: urlencoded, body: "user=decoy", query: "user=alice"}))
	require.Equal(t, []string{"alice"}, php(t, "user[name]", sent{kind: urlencoded, body: "user[name]=decoy&user[name]x=alice"}))
	require.Equal(t, []string{"decoy", "alice"}, php(t, "user", sent{query: "user=decoy", cookie: "user=alice"}))
	require.Equal(t, []string{"alice"}, php(t, "user", sent{kind: "text/plain", body: `{"user": "alice"}`}))
	long := "--B\r\nContent-Type: " + strings.Repeat("a", 5106) + "Content-Disposition: form-data; name=\"user\"\r\n\r\nalice\r\n--B--\r\n"
	require.Equal(t, []string{"alice"}, php(t, "user", sent{kind: inParts, body: long}))
	require.Contains(t, python(t, "user", sent{kind: inParts + "; boundary*=utf-8''C", body: parts(alice)}), "alice")
	require.Equal(t, []string{"alice"}, python(t, "user", sent{kind: inJSON, body: `{"x": NaN, "user": "alice"}`}))
}
