package main

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// palettes returns the colours of the style sheet by their names, for a light and
// for a dark screen.
func palettes(t *testing.T) map[string]map[string]string {
	sheet, err := static.ReadFile("static/style.css")
	require.NoError(t, err)
	blocks := regexp.MustCompile(`:root \{([^}]*)\}`).FindAllStringSubmatch(string(sheet), -1)
	require.Len(t, blocks, 2)
	palettes := make(map[string]map[string]string)
	for i, screen := range []string{"light", "dark"} {
		palettes[screen] = make(map[string]string)
		for _, c := range regexp.MustCompile(`--([a-z-]+): #([0-9a-f]{3,6});`).FindAllStringSubmatch(blocks[i][1], -1) {
			if len(c[2]) == 3 {
				c[2] = regexp.MustCompile(`.`).ReplaceAllString(c[2], "$0$0")
			}
			palettes[screen][c[1]] = c[2]
		}
	}
	return palettes
}

// luminance returns the relative luminance of a colour, as WCAG 2.2 defines it.
func luminance(t *testing.T, colour string) float64 {
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(colour[2*i:2*i+2], 16, 8)
		require.NoError(t, err)
		c := float64(n) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

func contrast(t *testing.T, one, other string) float64 {
	a, b := luminance(t, one), luminance(t, other)
	return (max(a, b) + 0.05) / (min(a, b) + 0.05)
}

func TestContrastIsThatOfBlackAndWhite(t *testing.T) {
	require.InDelta(t, 21, contrast(t, "000000", "ffffff"), 0.01)
	require.InDelta(t, 4.54, contrast(t, "ffffff", "767676"), 0.01)
}

// WCAG 2.2 asks for 3:1 of what shows where a field or the focus is, and for
// 4.5:1 of text.
func TestColoursHaveContrast(t *testing.T) {
	for screen, colours := range palettes(t) {
		for _, c := range []struct {
			on, colours string
			atLeast     float64
		}{
			{"card", "line focus wrong-line", 3},
			{"ground", "line focus", 3},
			{"card", "ink soft accent", 4.5},
			{"ground", "ink soft accent", 4.5},
			{"wait", "ink", 4.5},
			{"wrong", "ink", 4.5},
			{"good", "ink", 4.5},
			{"accent", "accent-ink", 4.5},
			{"accent-over", "accent-ink", 4.5},
		} {
			for name := range strings.FieldsSeq(c.colours) {
				require.GreaterOrEqual(t, contrast(t, colours[name], colours[c.on]), c.atLeast, "%s: %s on %s", screen, name, c.on)
			}
		}
	}
}
