package tally_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/tally"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
)

var update = flag.Bool("update", false, "write the golden files anew")

// get asks counts for target with an Accept header.
func get(counts *tally.Tally, target, accept string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", target, nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	counts.ServeHTTP(w, r)
	return w
}

func isJSON(w *httptest.ResponseRecorder) bool {
	return w.Header().Get("Content-Type") == "application/json"
}

func TestJSONShape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits, counts := observed(memstore.New())
		counts.MaxValues = 2
		for i := range 20 {
			authorize(t, limits, throttler.Rule{Identifier: "login", Either: login("192.0.2.1", "alice"+strconv.Itoa(i%3))}, 1)
			time.Sleep(time.Second)
		}
		authorize(t, limits, throttler.Rule{Identifier: "search", All: login("192.0.2.1", "\xff")[:1]}, 1)
		w := get(counts, "/?format=json", "")
		require.Equal(t, http.StatusOK, w.Code)
		golden := "testdata/snapshot.json"
		if *update {
			require.NoError(t, os.WriteFile(golden, w.Body.Bytes(), 0o644))
		}
		want, err := os.ReadFile(golden)
		require.NoError(t, err)
		assert.Equal(t, string(want), w.Body.String())
		var s Snapshot
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &s))
		assert.Equal(t, snapshotOf(counts), s, "a snapshot survives JSON")
	})
}

func TestFormatIsNegotiated(t *testing.T) {
	counts := tally.New()
	for _, c := range []struct {
		query, accept string
		json          bool
	}{
		{"", "", false},
		{"", "*/*", false},
		{"", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", false},
		{"", "application/json", true},
		{"", "Application/JSON; charset=utf-8", true},
		{"", "application/json, */*;q=0.5", true},
		{"", "application/json;q=0.5, text/html;q=0.6", false},
		{"", ",;;=,/", false},
		{"?format=json", "text/html", true},
		{"?format=html", "application/json", false},
		{"?format=xml", "application/json", true},
	} {
		w := get(counts, "/"+c.query, c.accept)
		assert.Equal(t, http.StatusOK, w.Code)
		assert.Equal(t, c.json, isJSON(w), "query %q, Accept %q", c.query, c.accept)
		assert.Equal(t, "Accept", w.Header().Get("Vary"))
		assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
		assert.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
	}
}

func TestOnlyGetAndHeadAreAnswered(t *testing.T) {
	server := httptest.NewServer(tally.New())
	defer server.Close()
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
		r, err := http.NewRequest(method, server.URL, nil)
		require.NoError(t, err)
		response, err := server.Client().Do(r)
		require.NoError(t, err)
		response.Body.Close()
		assert.Equal(t, http.StatusMethodNotAllowed, response.StatusCode)
		assert.Equal(t, "GET, HEAD", response.Header.Get("Allow"))
	}
	response, err := server.Client().Head(server.URL)
	require.NoError(t, err)
	response.Body.Close()
	assert.Equal(t, http.StatusOK, response.StatusCode)
	assert.Positive(t, response.ContentLength)
}

// parse checks what the page is made of, and returns it as a tree.
func parse(t *testing.T, w *httptest.ResponseRecorder) *html.Node {
	t.Helper()
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'; style-src 'sha256-")
	require.NotContains(t, w.Header().Get("Content-Security-Policy"), "unsafe")
	require.True(t, utf8.Valid(w.Body.Bytes()))
	require.True(t, strings.HasPrefix(w.Body.String(), "<!DOCTYPE html>"))
	page, err := html.Parse(w.Body)
	require.NoError(t, err)
	return page
}

// text returns what there is to read in elements of this name, each on its own.
func text(page *html.Node, element string) []string {
	var texts []string
	for n := range page.Descendants() {
		if n.Type != html.ElementNode || n.Data != element {
			continue
		}
		var b strings.Builder
		for d := range n.Descendants() {
			if d.Type == html.TextNode {
				b.WriteString(d.Data)
			}
		}
		texts = append(texts, b.String())
	}
	return texts
}

func TestAnEmptyPageSaysSo(t *testing.T) {
	page := parse(t, get(tally.New(), "/", "text/html"))
	assert.Equal(t, []string{"Tally"}, text(page, "h1"))
	assert.Contains(t, text(page, "p"), "No call has been decided yet.")
	assert.Empty(t, text(page, "table"))
}

func TestThePageShowsCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits, counts := observed(memstore.New())
		authorize(t, limits, throttler.Rule{Identifier: "login", Either: login("192.0.2.1", "alice")}, 1500)
		page := parse(t, get(counts, "/", ""))
		assert.Contains(t, text(page, "p"), "1,500 calls: 2 authorized, 1,498 blocked (99.9 %).")
		tables := text(page, "table")
		require.Len(t, tables, 4)
		assert.Equal(t, []string{"Banned now", "login"}, text(page, "h2"))
		assert.Equal(t, []string{"Most blocked: address", "Most blocked: name"}, text(page, "h3"))
		assert.Equal(t, "All 1.", text(page, "caption")[2])
		rows := text(page, "tr")[2:]
		assert.Equal(t, "address51,49500000", rows[1])
		assert.Equal(t, "name21,498001,49800", rows[2])
		assert.Equal(t, "alice1,498100.0 %", rows[6])
	})
}

func TestThePageWarns(t *testing.T) {
	limits, counts := observed(broken{memstore.New()})
	counts.HashKey, counts.MaxNames, counts.MaxValues = []byte("key"), 3, -1
	authorize(t, limits, throttler.Rule{Identifier: "login", Either: login("192.0.2.1", "alice")}, 2)
	authorize(t, limits, throttler.Rule{Identifier: "other", Either: login("192.0.2.1", "alice")}, 1)
	w := get(counts, "/", "")
	assert.NotContains(t, w.Body.String(), "says 192.0.2.99", "the text of an error")
	said := strings.Join(text(parse(t, w), "p"), "\n")
	assert.Contains(t, said, "The backend failed over 2 calls (100.0 %).")
	assert.Contains(t, said, "1 calls are not counted")
	assert.Contains(t, said, "keyed hashes")
	assert.Contains(t, said, "not recorded")
}

func TestHostileValuesDoNoHarmOnThePage(t *testing.T) {
	clean := make(map[string]int)
	counts := tally.New()
	for range hostile {
		block(counts, "harmless")
	}
	for n := range parse(t, get(counts, "/", "")).Descendants() {
		if n.Type == html.ElementNode {
			clean[n.Data]++
		}
	}
	counts.Reset()
	for _, value := range hostile {
		observe(counts, throttler.Rule{Identifier: "r" + value, Either: []throttler.Condition{{Name: "c" + value, Value: value}}}, false)
		block(counts, value)
	}
	w := get(counts, "/", "")
	assert.Less(t, w.Body.Len(), 100_000)
	page := parse(t, w)
	for n := range page.Descendants() {
		switch n.Type {
		case html.TextNode:
			assert.True(t, n.Parent.Data == "style" || utf8.RuneCountInString(n.Data) < 300, "%q", n.Data)
			for _, r := range n.Data {
				assert.False(t, r < ' ' && r != '\n' || r == '\u202e' || r == '\x7f', "%q", n.Data)
			}
		case html.ElementNode:
			assert.True(t, clean[n.Data] > 0 || n.Data == "em", "element %s", n.Data)
			for _, a := range n.Attr {
				assert.False(t, strings.HasPrefix(a.Key, "on"), "attribute %s", a.Key)
			}
		}
	}
	shown := text(page, "bdi")
	assert.Contains(t, shown, "<script>alert(1)</script>")
	assert.Contains(t, shown, "{{.Since}}")
	assert.Contains(t, shown, strings.Repeat("x", 80)+"…")
	assert.Contains(t, text(page, "em"), "empty")
	assert.Equal(t, []string{"?format=json", "?refresh=off"}, links(page))
}

func links(page *html.Node) []string {
	var found []string
	for n := range page.Descendants() {
		for _, a := range n.Attr {
			if a.Key == "href" || a.Key == "src" {
				found = append(found, a.Val)
			}
		}
	}
	return found
}

func TestThePageShowsTheMostBlockedOnly(t *testing.T) {
	counts := tally.New()
	counts.MaxValues = 40
	for i := range 50 {
		for range i + 1 {
			block(counts, fmt.Sprint("value", i))
		}
	}
	page := parse(t, get(counts, "/", ""))
	captions := text(page, "caption")
	require.Len(t, captions, 2)
	assert.Contains(t, captions[1], "The first 25 of 40 that are kept.")
	assert.Contains(t, captions[1], "Any other value was blocked 11 times at most.")
	assert.Equal(t, 40, strings.Count(get(counts, "/?format=json", "").Body.String(), `"value": `), "JSON has all")
	rows := text(page, "tr")
	assert.Len(t, rows, 2+1+25)
	assert.Contains(t, rows[3], " to ", "bounds where the count is not exact")
}

// Every table has a caption, its header cells a scope, and what scrolls can be
// scrolled by key and has a name.
func TestThePageIsAccessible(t *testing.T) {
	counts := tally.New()
	block(counts, "v")
	page := parse(t, get(counts, "/", ""))
	assert.Len(t, text(page, "caption"), len(text(page, "table")))
	for n := range page.Descendants() {
		attributes := make(map[string]string)
		for _, a := range n.Attr {
			attributes[a.Key] = a.Val
		}
		switch n.Data {
		case "html":
			if n.Type == html.ElementNode {
				assert.Equal(t, "en", attributes["lang"])
			}
		case "th":
			assert.Contains(t, []string{"col", "row"}, attributes["scope"])
		case "div":
			assert.Equal(t, "region", attributes["role"])
			assert.Equal(t, "0", attributes["tabindex"])
			assert.NotEmpty(t, attributes["aria-label"])
		}
	}
	assert.Len(t, text(page, "main"), 1)
	assert.Len(t, text(page, "title"), 1)
	assert.Empty(t, text(page, "script"))
}
