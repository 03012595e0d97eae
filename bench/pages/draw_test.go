// Package pages has tests that compare what pages show with what was measured: the tables of
// docs/benchmarks.md and README.md and the picture of bars with bench/results.md, and the
// pictures of docs/rules.md with runs under virtual time. To write what they should show, type:
//
//	go test ./bench/pages -update
//
// Runs are reproducible and coordinates whole numbers, so the pictures are the
// same everywhere, to the byte.
package pages

import (
	"bytes"
	"flag"
	"fmt"
	"html"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the pages and the pictures")

// requireShows compares a page or a picture with what it should show, or writes that.
func requireShows(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, string(text) == want, "%s shows something else: go test ./bench/pages -update", path)
}

// picture returns a picture in SVG of a height, in tenths of a pixel.
func picture(title, styles string, height int, draw func(*bytes.Buffer)) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", width, height, width/10, height/10)
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString(title))
	b.WriteString(styles)
	fmt.Fprintf(&b, `<rect class="card" x="5" y="5" width="%d" height="%d" rx="100"/>`+"\n", width-10, height-10)
	draw(&b)
	b.WriteString("</svg>\n")
	return b.String()
}

// A Key names a limiter. Its index in Keys decides its colour.
type Key struct {
	Name string
	Note string // a few words about it
}

// Measures, in tenths of a pixel.
const (
	width     = 8400
	margin    = 260
	gap       = 420
	keyHeight = 210
	header    = 480 // above bars or a plot
)

func text(b *bytes.Buffer, class string, x, y int, s string) {
	fmt.Fprintf(b, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", class, x, y, html.EscapeString(s))
}

// style has colours for light and dark pages. The card is always painted, since
// a page may be dark where the reader's system is not. The lines later in Keys
// are thinner and lie upon the wider ones.
const style = `<style>
text { font: 125px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #57606a }
.card { fill: #ffffff; stroke: #d0d7de; stroke-width: 10 }
.title { font-size: 155px; font-weight: 600; fill: #1f2328 }
.key, .note { font-size: 130px }
.name { font-weight: 600 }
.tick { font-size: 110px }
.end { text-anchor: end }
.middle { text-anchor: middle }
.grid { stroke: #eaeef2; stroke-width: 10; fill: none }
.call { stroke: #8c959f; stroke-width: 9; fill: none }
.line { fill: none; stroke-linejoin: round }
.l0 { stroke: #f0b072; stroke-width: 70 }
.l1 { stroke: #4d94e8; stroke-width: 40 }
.l2 { stroke: #0b5d4c; stroke-width: 18 }
.l3 { stroke: #a03a8a; stroke-width: 18; stroke-dasharray: 60 35 }
.t0 { fill: #a85a0c } .t1 { fill: #1d68c0 } .t2 { fill: #0b5d4c } .t3 { fill: #a03a8a }
@media (prefers-color-scheme: dark) {
text { fill: #9198a1 }
.card { fill: #0d1117; stroke: #3d444d }
.title { fill: #f0f6fc }
.grid { stroke: #21262d }
.call { stroke: #656c76 }
.l0 { stroke: #8f5316 }
.l1 { stroke: #3d86d8 }
.l2 { stroke: #7ee7c7 }
.l3 { stroke: #f09be0 }
.t0 { fill: #e8a558 } .t1 { fill: #6cb0ff } .t2 { fill: #7ee7c7 } .t3 { fill: #f09be0 }
}
</style>
`
