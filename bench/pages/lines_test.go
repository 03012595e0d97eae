package pages

import (
	"bytes"
	"fmt"
	"html"
	"time"
)

// A Picture shows charts of the same limiters, side by side.
type Picture struct {
	Title   string // text for screen readers
	Columns int    // charts side by side
	Keys    []Key  // the limiters, from the widest line to the thinnest
	Charts  []Chart
}

// A Chart shows how many of the same calls each limiter let through.
type Chart struct {
	Title, Subtitle string
	Span            time.Duration   // the time shown, from 0
	Top             int             // the largest number of calls
	Calls           []time.Duration // times of the calls, in order
	Lines           []Line          // one for each Key
	Notes           []string        // SVG text below the chart
}

// A Line holds the times at which calls were let through, in order.
type Line []time.Duration

// Measures of charts, in tenths of a pixel. A chart is its plot and the parts around it.
const (
	plot    = 1700
	rug     = 130 // below a plot: the calls
	axis    = 260 // below that: the times
	note    = 190
	yLabels = 300
)

// SVG returns the picture.
func (p *Picture) SVG() string {
	rows := (len(p.Charts) + p.Columns - 1) / p.Columns
	keys := margin + len(p.Keys)*keyHeight
	chart := header + plot + rug + axis + note*p.notes()
	height := keys + rows*chart + (rows-1)*gap/4 + margin
	w := (width - 2*margin - (p.Columns-1)*gap) / p.Columns
	return picture(p.Title, style, height, func(b *bytes.Buffer) {
		p.keys(b)
		for i := range p.Charts {
			x := margin + i%p.Columns*(w+gap)
			y := keys + i/p.Columns*(chart+gap/4)
			p.Charts[i].draw(b, x, y, w)
		}
	})
}

// notes returns the largest number of notes of a chart.
func (p *Picture) notes() int {
	n := 0
	for _, c := range p.Charts {
		n = max(n, len(c.Notes))
	}
	return n
}

func (p *Picture) keys(b *bytes.Buffer) {
	for i, k := range p.Keys {
		y := margin + i*keyHeight
		fmt.Fprintf(b, `<path class="line l%d" d="M%d %dh400"/>`, i, margin, y+60)
		fmt.Fprintf(b, `<text class="key" x="%d" y="%d"><tspan class="t%d name">%s</tspan> %s</text>`+"\n",
			margin+520, y+100, i, html.EscapeString(k.Name), html.EscapeString(k.Note))
	}
}

// draw draws c with its upper left corner at x, y.
func (c *Chart) draw(b *bytes.Buffer, x, y, w int) {
	text(b, "title", x, y+200, c.Title)
	text(b, "sub", x, y+370, c.Subtitle)
	a := area{left: x + yLabels, right: x + w, top: y + header, bottom: y + header + plot, chart: c}
	a.grid(b)
	for i, line := range c.Lines {
		a.line(b, i, line)
	}
	a.calls(b)
	for i, n := range c.Notes {
		fmt.Fprintf(b, `<text class="note" x="%d" y="%d">%s</text>`+"\n", a.left, a.bottom+rug+axis+(i+1)*note-40, n)
	}
}

// Figures returns a note with figures, one for each line, in the lines'
// colours.
func Figures(format string, figures ...int) string {
	var b bytes.Buffer
	for i, f := range figures {
		if i > 0 {
			b.WriteString(" · ")
		}
		fmt.Fprintf(&b, `<tspan class="t%d name">%d</tspan>`, i, f)
	}
	return html.EscapeString(format) + " " + b.String()
}

// An area is the plot of a chart.
type area struct {
	left, right, top, bottom int
	chart                    *Chart
}

func (a *area) x(t time.Duration) int {
	return a.left + int(int64(t)*int64(a.right-a.left)/int64(a.chart.Span))
}

func (a *area) y(n int) int {
	return a.bottom - n*(a.bottom-a.top)/a.chart.Top
}

func (a *area) grid(b *bytes.Buffer) {
	step := max(10, a.chart.Top/40*10)
	for n := 0; n <= a.chart.Top; n += step {
		fmt.Fprintf(b, `<path class="grid" d="M%d %dH%d"/>`, a.left, a.y(n), a.right)
		fmt.Fprintf(b, `<text class="tick end" x="%d" y="%d">%d</text>`+"\n", a.left-70, a.y(n)+40, n)
	}
	minutes := max(1, int(a.chart.Span/time.Minute)/10*2)
	for m := 0; time.Duration(m)*time.Minute <= a.chart.Span; m += minutes {
		x := a.x(time.Duration(m) * time.Minute)
		fmt.Fprintf(b, `<path class="grid" d="M%d %dV%d"/>`, x, a.top, a.bottom)
		fmt.Fprintf(b, `<text class="tick middle" x="%d" y="%d">%d min</text>`+"\n", x, a.bottom+rug+170, m)
	}
}

// line draws the steps of a line.
func (a *area) line(b *bytes.Buffer, i int, line Line) {
	fmt.Fprintf(b, `<path class="line l%d" d="M%d %d`, i, a.left, a.bottom)
	for n, t := range line {
		fmt.Fprintf(b, "H%dV%d", a.x(t), a.y(n+1))
	}
	fmt.Fprintf(b, `H%d"/>`+"\n", a.right)
}

// calls draws a mark for each call.
func (a *area) calls(b *bytes.Buffer) {
	b.WriteString(`<path class="call" d="`)
	for _, t := range a.chart.Calls {
		fmt.Fprintf(b, "M%d %dv%d", a.x(t), a.bottom+35, rug-50)
	}
	b.WriteString("\"/>\n")
}
