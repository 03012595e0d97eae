package httpthrottle

import (
	"strconv"
	"strings"
)

// An offer is a kind of body that a refusal can have, the one first that is
// taken if a client likes several as much.
type offer int

const (
	offerProblem offer = iota
	offerPlain
	offerHTML
	offers
)

// ranges holds the media ranges that name an offer: its type, and what a client
// may ask for to get it. Whoever asks for JSON is content with problem details.
var ranges = [offers][]string{
	offerProblem: {"application/problem+json", "application/json"},
	offerPlain:   {"text/plain"},
	offerHTML:    {"text/html", "application/xhtml+xml"},
}

// maxRanges is how many media ranges of a request are looked at. Browsers send
// fewer than ten, and a refused request is to cost little.
const maxRanges = 50

// negotiate returns the offer that a request with these Accept fields likes
// best, by RFC 9110, section 12.5.1: an offer's quality is that of the most
// specific range which matches it, and 0 means never. Parameters other than q
// are ignored, as is a range that cannot be read. If nothing is acceptable, or
// nothing is asked for, it is the first offer: the client needs an answer more
// than a type.
func negotiate(accept []string) offer {
	var quality [offers]float64
	var specific [offers]int // how specific the range was that gave it; 0: none
	left := maxRanges
	for _, field := range accept {
		for element := range strings.SplitSeq(field, ",") {
			if left--; left < 0 {
				break
			}
			mediaRange, q := parseRange(element)
			for o := range offers {
				// >: of two ranges alike, the first counts.
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

// match returns how specifically mediaRange, in lower case, matches o; 0: not
// at all.
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

// parseRange takes an element of an Accept field apart. The range is empty if
// its q is no number.
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
