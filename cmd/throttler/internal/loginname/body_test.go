package loginname_test

import (
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/loginname"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func isA(err, target error) bool { return errors.Is(err, target) }

const limit = 100

// inspect inspects a form of which the first limit bytes are read at once.
func inspect(t *testing.T, body io.Reader) (*loginname.Finder, *loginname.Body, error) {
	t.Helper()
	f := &loginname.Finder{Field: "user"}
	scan, err := f.Body(http.Header{"Content-Type": {urlencoded}})
	require.NoError(t, err)
	passed, err := scan.Inspect(io.NopCloser(body), limit)
	if passed != nil {
		t.Cleanup(func() { passed.Close() })
	}
	return f, passed, err
}

func TestALongBodyIsPassedOnAsItIs(t *testing.T) {
	text := "user=alice&text=" + strings.Repeat("0123456789", 20_000)
	for _, reader := range []io.Reader{strings.NewReader(text), iotest.DataErrReader(strings.NewReader(text)), iotest.HalfReader(strings.NewReader(text))} {
		f, body, err := inspect(t, reader)
		assert.Equal(t, "alice", found(t, f, err))
		assert.False(t, body.Whole)
		passed, err := io.ReadAll(body)
		assert.NoError(t, err)
		assert.Equal(t, text, string(passed))
		assert.NoError(t, body.Close())
	}
}

func TestAShortBodyIsReadAtOnce(t *testing.T) {
	for _, text := range []string{"", "user=alice", "user=alice&p=" + strings.Repeat("x", limit-13)} {
		_, body, err := inspect(t, strings.NewReader(text))
		require.NoError(t, err)
		assert.True(t, body.Whole)
		assert.Equal(t, text, string(body.First))
		passed, err := io.ReadAll(body)
		assert.NoError(t, err)
		assert.Equal(t, text, string(passed))
	}
}

func TestNobodyGetsTheWholeOfALongBodyWithASecondName(t *testing.T) {
	for _, end := range []string{"&user=bob", "&user=bob&x=1", "&user=", "&user", "&USER=bob", "&us%er"} {
		for _, length := range []int{200, 32 << 10, 32<<10 + limit - len("user=alice&text=") + 1, 100_000} {
			f, body, err := inspect(t, strings.NewReader("user=alice&text="+strings.Repeat("x", length)+end))
			require.Equal(t, "alice", found(t, f, err))
			passed, err := io.ReadAll(body)
			assert.True(t, errors.Is(err, loginname.ErrAmbiguous) || errors.Is(err, loginname.ErrUnreadable), "%v", err)
			assert.NotContains(t, string(passed), end, "after %d", length)
			_, again := body.Read(make([]byte, 1))
			assert.Equal(t, err, again)
		}
	}
}

func TestANameBehindTheLimitIsRefusedOnceTheFinderIsSealed(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		f, body, err := inspect(t, strings.NewReader("text="+strings.Repeat("x", 100_000)+"&user=alice"))
		require.Equal(t, none, found(t, f, err))
		if sealed {
			f.Seal()
		}
		_, err = io.ReadAll(body)
		assert.Equal(t, map[bool]string{false: "alice", true: ambiguous}[sealed], found(t, f, err))
	}
}

func TestNobodyGetsASecondNameThatComesByteByByte(t *testing.T) {
	filler := strings.Repeat("x", limit)
	for _, c := range []struct{ kind, name, body string }{
		{urlencoded, "alice", "user=mallory&x=" + filler + "&password=guess&user=alice"},
		{"application/json", `"alice"`, `{"user": "mallory", "x": "` + filler + `", "password": "guess", "user": "alice"}`},
		{"multipart/form-data; boundary=B", "\r\n\r\nalice", parts(strings.Replace(alice, "alice", "mallory", 1), other+filler, alice)},
	} {
		f := &loginname.Finder{Field: "user", Keys: []string{"user"}}
		scan, err := f.Body(http.Header{"Content-Type": {c.kind}})
		require.NoError(t, err)
		body, err := scan.Inspect(io.NopCloser(iotest.OneByteReader(strings.NewReader(c.body))), limit)
		require.Equal(t, "mallory", found(t, f, err))
		passed, err := io.ReadAll(body)
		assert.ErrorIs(t, err, loginname.ErrAmbiguous)
		assert.NotContains(t, string(passed), c.name[:len(c.name)-1], c.kind)
		assert.NoError(t, body.Close())
	}
}

func TestTheErrorOfABodyIsPassedOn(t *testing.T) {
	gone := errors.New("the client has gone")
	_, _, err := inspect(t, io.MultiReader(strings.NewReader("user=alice"), iotest.ErrReader(gone)))
	assert.ErrorIs(t, err, gone)
	_, body, err := inspect(t, io.MultiReader(strings.NewReader("user=alice&text="+strings.Repeat("x", 1000)), iotest.ErrReader(gone)))
	require.NoError(t, err)
	_, err = io.ReadAll(body)
	assert.ErrorIs(t, err, gone)
}

func TestABodyThatIsNotReadToItsEndLeavesNothingBehind(t *testing.T) {
	_, body, err := inspect(t, strings.NewReader("user=alice&text="+strings.Repeat("x", 100_000)))
	require.NoError(t, err)
	_, err = body.Read(make([]byte, 10))
	require.NoError(t, err)
	assert.NoError(t, body.Close()) // returns when the goroutine has ended
	assert.NoError(t, body.Close())
}

func TestLittleIsKeptOfBodiesThatDoNotEnd(t *testing.T) {
	const bodies, length, kept = 8, 900_000, 512 << 10
	for _, c := range []struct{ name, kind, start, filler string }{
		{"text", "application/json", `{"x": "`, "a"},
		{"text behind the name", "application/json", `{"user": "alice", "x": "`, `\u00e4`},
		{"blanks", "application/json", `{"x": [`, " "},
		{"form", urlencoded, "user=alice&x=", "a"},
		{"parts", "multipart/form-data; boundary=B", strings.TrimSuffix(parts(alice, other), "\r\n--B--\r\n"), "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := c.start + strings.Repeat(c.filler, length/len(c.filler))
			before := heap()
			open := make([]*loginname.Body, bodies)
			for i := range open {
				f := &loginname.Finder{Field: "user", Keys: []string{"user"}}
				scan, err := f.Body(http.Header{"Content-Type": {c.kind}})
				require.NoError(t, err)
				silence, end := io.Pipe()
				defer end.Close()
				open[i], err = scan.Inspect(io.NopCloser(io.MultiReader(strings.NewReader(text), silence)), 64<<10)
				require.NoError(t, err)
				defer open[i].Close()
				_, err = io.CopyN(io.Discard, open[i], int64(len(text)-64<<10)) // the last chunks are kept back
				require.NoError(t, err)
			}
			assert.Less(t, heap()-before, int64(bodies*kept))
			runtime.KeepAlive(open)
		})
	}
}

// heap is how much memory is in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
