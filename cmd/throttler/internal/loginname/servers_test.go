package loginname_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/loginname"
	"github.com/adaptivethrottler/throttler/internal/childtest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

// This file compares what is found with what PHP and Python read.

// TestMain says at the end what was skipped.
func TestMain(m *testing.M) { os.Exit(skiptest.Run(m)) }

// A reader returns the values that a server reads for a field, if any.
type reader func(t require.TestingT, field, kind, body string) []string

func php(t *testing.T) reader {
	path := skiptest.Program(t, "php", "php-cli")
	address, err := childtest.FreeAddr(childtest.Others)
	require.NoError(t, err)
	command := exec.Command(path, "-d", "display_errors=0", "-S", address, "testdata/reader.php")
	_, err = childtest.Start(command)
	require.NoError(t, err)
	t.Cleanup(func() { command.Process.Kill() })
	ask := func(t require.TestingT, field, kind, body string) (*http.Response, error) {
		r, err := http.NewRequest("POST", "http://"+address, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", kind)
		r.Header.Set("X-Steps", strings.NewReplacer("[", " ", "]", "", ".", "_").Replace(field))
		return http.DefaultClient.Do(r)
	}
	require.Eventually(t, func() bool {
		answer, err := ask(t, "user", "text/plain", "")
		if err == nil {
			answer.Body.Close()
		}
		return err == nil
	}, time.Minute, 20*time.Millisecond)
	return func(t require.TestingT, field, kind, body string) (values []string) {
		answer, err := ask(t, field, kind, body)
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
	_, err = childtest.Start(command)
	require.NoError(t, err)
	t.Cleanup(func() { in.Close() })
	lines := bufio.NewReader(out)
	return func(t require.TestingT, field, kind, body string) (values []string) {
		line, err := json.Marshal(map[string]any{"field": field, "kind": kind, "body": []byte(body)})
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

// shown is what is compared of a value: servers replace what is no UTF-8 in their own ways.
func shown(value string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(value, ""), "\ufffd", "")
}

func TestNoServerReadsAnotherNameThanWasFound(t *testing.T) {
	const multipart = "multipart/form-data; boundary=B"
	decoy := strings.Replace(alice, "alice", "decoy", 1)
	honest := map[string][]string{
		urlencoded: {"user=decoy&text=x", "text=x&user=decoy", "text=x&user[name]=decoy&user[text]=x", "user.name=decoy", "text=x"},
		multipart: {
			parts(other, decoy), parts(decoy, other), parts(other), parts(decoy, strings.TrimSuffix(other, "x")+"alice"), parts(decoy, "\r\nalice"),
			parts(other, "Content-Disposition: form-data; name=\"user[name]\"\r\nContent-Type: text/plain; charset=utf-8\r\n\r\ndecoy", other),
		},
		"application/json": {`{"user": "decoy", "text": {"user": "x"}}`, `{"text": 1.5, "user": "decoy"}`, `{"text": []}`},
	}
	readers := map[string]reader{"PHP": php(t), "Python": python(t)}
	names := 0
	try := func(t *rapid.T) {
		kind := rapid.SampledFrom([]string{urlencoded, multipart, multipart, "application/json"}).Draw(t, "kind")
		field := rapid.SampledFrom([]string{"user", "user[name]", "user.name"}).Draw(t, "field")
		body := altered(t, rapid.SampledFrom(honest[kind]).Draw(t, "honest"))
		if kind == multipart && rapid.IntRange(0, 3).Draw(t, "type") == 0 {
			kind = "multipart/form-data" + altered(t, "; boundary=B")
		}
		if strings.ContainsAny(kind, "\r\n\x00") {
			return // no field of a request has these
		}
		f := &loginname.Finder{Field: field, Keys: []string{"user"}}
		scan, err := f.Body(http.Header{"Content-Type": {kind}})
		if err != nil || scan == nil {
			return
		}
		if _, err = scan.Inspect(io.NopCloser(strings.NewReader(body)), 64<<10); err != nil {
			return
		}
		name, found := f.Name()
		for server, read := range readers {
			for _, value := range read(t, field, kind, body) {
				require.True(t, found, "%s reads %q, but no name was found in %s %q", server, value, kind, body)
				require.Equal(t, shown(name), shown(value), "%s reads it in %s %q", server, kind, body)
				names++
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 30 {
			try(t)
		}
	})
	require.NotZero(t, names)
}

// What was found beside each of these, before, was another name than a server read.
func TestTheReadersOfServersReadWhatTheyAreKnownToRead(t *testing.T) {
	php, python := php(t), python(t)
	require.Equal(t, []string{"decoy", "alice"}, python(t, "user", urlencoded, "user=decoy&user=alice"))
	require.Equal(t, []string{"alice"}, php(t, "user[name]", urlencoded, "user[name]=decoy&user[name]x=alice"))
	long := "--B\r\nContent-Type: " + strings.Repeat("a", 5106) + "Content-Disposition: form-data; name=\"user\"\r\n\r\nalice\r\n--B--\r\n"
	require.Equal(t, []string{"alice"}, php(t, "user", "multipart/form-data; boundary=B", long))
	both := "multipart/form-data; boundary=B; boundary*=utf-8''C"
	require.Equal(t, []string{"alice"}, php(t, "user", both, parts(alice)))
	require.True(t, slices.Contains(python(t, "user", both, parts(alice)), "alice"))
	require.Equal(t, []string{"alice"}, python(t, "user", "application/json", `{"x": NaN, "user": "alice"}`))
}
