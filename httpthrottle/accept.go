package httpthrottle

import (
	"strconv"
	"strings"
)

// An offer is a kind of body for a refusal. If a client likes several equally,
// the first is taken.
type offer int

const (
	offerProblem offer = iota
	offerPlain
	offerHTML
	offers
)

// ranges holds the media ranges that ask for each offer, its own type first. A
// client that accepts JSON gets problem details.
var ranges = [offers][]string{
	offerProblem: {"application/problem+json", "application/json"},
	offerPlain:   {"text/plain"},
	offerHTML:    {"text/html", "application/xhtml+xml"},
}

// maxRanges is the number of media ranges of a request that are read, to keep a
// refusal cheap. Browsers send fewer than ten.
const maxRanges = 50

// negotiate returns the offer that a request with these Accept fields likes
// best, by RFC 9110, section 12.5.1: an offer has the quality of the most
// specific range that matches it, and 0 means never. Parameters other than q,
// and ranges that cannot be read, are ignored. If nothing is acceptable or no
// range is sent, the first offer is taken.
func negotiate(accept []string) offer {
	var quality [offers]float64
	var specific [offers]int // of the range that gave the quality; 0: none
	left := maxRanges
	for _, field := range accept {
		for element := range strings.SplitSeq(field, ",") {
			if left--; left < 0 {
				break
			}
			mediaRange, q := parseRange(element)
			for o := range offers {
				// >: of two equal ranges, the first counts.
				if s := o.match(mediaRange); s > specific[o] {
					specific[o], quality[o] = s, q
				}
			}
		}
	}
	best := offerProblem
	for o := range offers {
		if quality[o] > quality[best] {
			best = o
		}
	}
	return best
}

// match returns how specifically mediaRange, in lower case, matches o, or 0.
func (o offer) match(mediaRange string) int {
	if mediaRange == "*/*" {
		return 1
	}
	for i, name := range ranges[o] {
		if mediaRange == name {
			return 4 - i // the type itself before what it stands in for
		}
		if prefix, found := strings.CutSuffix(mediaRange, "/*"); found && i == 0 && strings.HasPrefix(name, prefix+"/") {
			return 2
		}
	}
	return 0
}

// parseRange parses an element of an Accept field. The range is empty if its q
// is invalid.
func parseRange(element string) (mediaRange string, q float64) {
	name, parameters, _ := strings.Cut(element, ";")
	q = 1
	for parameter := range strings.SplitSeq(parameters, ";") {
		key, value, _ := strings.Cut(parameter, "=")
		if !strings.EqualFold(strings.TrimSpace(key), "q") {
			continue
		}
		var err error
		q, err = strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil || !(q >= 0 && q <= 1) {
			return "", 0
		}
	}
	return strings.ToLower(strings.TrimSpace(name)), q
}
