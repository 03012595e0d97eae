package pages

import (
	"bytes"
	"fmt"
	"html"
	"slices"
)

// Bars is a picture with panels of bars, side by side. Bars are compared within
// a panel.
type Bars struct {
	Title   string // text for screen readers
	Columns int    // panels side by side
	Keys    []Key  // the groups, each with its colour
	Panels  []Panel
}

// A Panel has bars of one unit, starting at 0.
type Panel struct {
	Title, Subtitle string
	Bars            []Bar
}

// A Bar is a figure with its name.
type Bar struct {
	Name   string
	Key    int // the group, an index of Keys
	Value  float64
	Figure string // the text beside the bar
}

// Measures of bars, in tenths of a pixel. A row has a name, and its bar below.
const (
	row       = 320
	thickness = 90
	figure    = 560 // room beside the longest bar
)

// SVG returns the picture.
func (p *Bars) SVG() string {
	rows := slices.Collect(slices.Chunk(p.Panels, p.Columns))
	keys := margin + len(p.Keys)*keyHeight
	height := keys + margin/2
	for _, panels := range rows {
		height += rowHeight(panels)
	}
	return picture(p.Title, style+barStyle, height, func(b *bytes.Buffer) {
		for i, k := range p.Keys {
			y := margin + i*keyHeight
			fmt.Fprintf(b, `<rect class="b%d" x="%d" y="%d" width="400" height="%d"/>`, i, margin, y+15, thickness)
			fmt.Fprintf(b, `<text class="key" x="%d" y="%d"><tspan class="name">%s</tspan> %s</text>`+"\n",
				margin+520, y+100, html.EscapeString(k.Name), html.EscapeString(k.Note))
		}
		w := (width - 2*margin - (p.Columns-1)*gap) / p.Columns
		y := keys
		for _, panels := range rows {
			for i := range panels {
				panels[i].draw(b, margin+i*(w+gap), y, w)
			}
			y += rowHeight(panels)
		}
	})
}

// rowHeight returns the height of the highest of panels.
func rowHeight(panels []Panel) int {
	n := 0
	for _, panel := range panels {
		n = max(n, len(panel.Bars))
	}
	return header + row*n + gap/2
}

// draw draws p with its upper left corner at x, y.
func (p *Panel) draw(b *bytes.Buffer, x, y, w int) {
	text(b, "title", x, y+200, p.Title)
	text(b, "sub", x, y+370, p.Subtitle)
	longest := 0.0
	for _, bar := range p.Bars {
		longest = max(longest, bar.Value)
	}
	for i, bar := range p.Bars {
		top := y + header + i*row
		length := 0
		if longest > 0 {
			length = int(bar.Value / longest * float64(w-figure))
		}
		text(b, "note", x, top+120, bar.Name)
		fmt.Fprintf(b, `<rect class="b%d" x="%d" y="%d" width="%d" height="%d"/>`, bar.Key, x, top+160, max(length, 10), thickness)
		text(b, "tick", x+length+60, top+160+thickness-5, bar.Figure)
	}
}

// barStyle adds the colours of groups to style.
const barStyle = `<style>
.b0 { fill: #0b5d4c } .b1 { fill: #4d94e8 } .b2 { fill: #f0b072 }
@media (prefers-color-scheme: dark) {
.b0 { fill: #7ee7c7 } .b1 { fill: #3d86d8 } .b2 { fill: #8f5316 }
}
</style>
`
