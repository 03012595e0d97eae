package httpthrottle_test

import (
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

func TestBodyOfUnknownLengthCostsTheMostThatIsRead(t *testing.T) {
	for _, test := range []struct {
		length int64
		want   int
	}{
		{-1, 1000},
		{0, 1},
		{1, 1},
		{999, 999},
		{5000, 5000}, // the limit refuses it, or the handler
		{math.MaxInt64, math.MaxInt},
	} {
		require.Equal(t, test.want, httpthrottle.BodyCost(&http.Request{ContentLength: test.length}, 1000), test.length)
	}
	require.PanicsWithValue(t, "httpthrottle: BodyCost: most is 0, want 1 or more", func() {
		httpthrottle.BodyCost(&http.Request{}, 0)
	})
}

// A megabyte a minute, sent in chunks without a length or with one: either way it
// is used up by it, and a body is cut where its cost ends.
func TestChunkedBodiesDoNotEvadeALimitOfBytes(t *testing.T) {
	const most = 1 << 20
	limit := httpthrottle.New(throttler.New(memstore.New()), func(r *http.Request) throttler.Rule {
		return throttler.Rule{Identifier: "upload", Either: []throttler.Condition{{
			Name: "bytes", Value: r.URL.Path, Max: most, TTL: time.Minute,
			Algorithm: throttler.LeakyBucket, Cost: httpthrottle.BodyCost(r, most),
		}}}
	})
	read := make(chan int64, 1)
	upload := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		read <- n
	})
	server := httptest.NewServer(limit.Handler(http.MaxBytesHandler(upload, most)))
	t.Cleanup(server.Close)
	post := func(path string, size int, chunked bool) int {
		var body io.Reader = strings.NewReader(strings.Repeat("x", size))
		if chunked {
			body = io.MultiReader(body) // whose length net/http does not know
		}
		answer, err := server.Client().Post(server.URL+path, "text/plain", body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		return answer.StatusCode
	}

	require.Equal(t, http.StatusOK, post("/chunked", 900_000, true))
	require.EqualValues(t, 900_000, <-read)
	require.Equal(t, http.StatusTooManyRequests, post("/chunked", 900_000, true))

	require.Equal(t, http.StatusOK, post("/known", 500_000, false))
	require.EqualValues(t, 500_000, <-read)
	require.Equal(t, http.StatusOK, post("/known", 500_000, false))
	require.EqualValues(t, 500_000, <-read)
	require.Equal(t, http.StatusTooManyRequests, post("/known", 500_000, false))

	require.Equal(t, http.StatusOK, post("/endless", 3*most, true))
	require.EqualValues(t, most, <-read, "what was paid for")
}
