package draw

import (
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rects returns the widths of the bars in svg, by their class, without those of
// the keys.
func rects(t *testing.T, svg []byte) map[string][]int {
	t.Helper()
	widths := make(map[string][]int)
	for decoder := xml.NewDecoder(strings.NewReader(string(svg))); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return widths
		}
		require.NoError(t, err)
		element, ok := token.(xml.StartElement)
		if !ok || element.Name.Local != "rect" {
			continue
		}
		attributes := make(map[string]string)
		for _, a := range element.Attr {
			attributes[a.Name.Local] = a.Value
		}
		width, err := strconv.Atoi(attributes["width"])
		require.NoError(t, err)
		if class := attributes["class"]; class != "card" {
			widths[class] = append(widths[class], width)
		}
	}
}

func twoPanels() *Bars {
	return &Bars{
		Title: "a & b", Columns: 2,
		Keys: []Key{{"ours", "is fast"}, {"theirs", "<is> not"}},
		Panels: []Panel{
			{Title: "One", Bars: []Bar{{"a", 0, 1, "1 µs"}, {"b", 1, 4, "4 µs"}}},
			{Title: "Two", Bars: []Bar{{"a", 0, 30, "30 µs"}, {"b", 1, 15, "15 µs"}, {"c", 1, 0, "0"}}},
		},
	}
}

func TestBarsAreAsLongAsTheirValuesWithinAPanel(t *testing.T) {
	widths := rects(t, twoPanels().SVG())
	longest := (width-2*margin-gap)/2 - figure
	const key, least = 400, 10
	require.Equal(t, map[string][]int{
		"b0": {key, longest / 4, longest},
		"b1": {key, longest, longest / 2, least},
	}, widths)
}

func TestBarsHaveTheirNamesAndFigures(t *testing.T) {
	svg := string(twoPanels().SVG())
	for _, want := range []string{">a &amp; b<", ">ours<", "&lt;is&gt; not", ">One<", ">Two<", ">4 µs<", ">30 µs<", ">c<"} {
		require.Contains(t, svg, want)
	}
}

// A row of panels is as high as the one with the most bars, and no higher.
func TestPictureIsAsHighAsItsRows(t *testing.T) {
	height := func(p *Bars) int {
		var svg struct {
			Height int `xml:"height,attr"`
		}
		require.NoError(t, xml.Unmarshal(p.SVG(), &svg))
		return svg.Height * 10
	}
	both := twoPanels()
	first := *both
	first.Panels = both.Panels[:1]
	require.Equal(t, row, height(both)-height(&first))
	stacked := *both
	stacked.Columns = 1
	require.Equal(t, header+2*row+gap/2, height(&stacked)-height(both))
}
