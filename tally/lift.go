package tally

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
)

// maxForm is the largest body of a request to lift a ban, in bytes.
const maxForm = 4 << 10

// serveLift answers a request about one ban: GET with a form, and POST, as the form sends it, by
// lifting the ban. No other site's page can send it, and nobody without a key.
func (t *Tally) serveLift(w http.ResponseWriter, r *http.Request, id string) {
	if r.Method == http.MethodPost {
		if err := new(http.CrossOriginProtection).Check(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
	}
	b := &t.epoch.Load().bans
	of, found := b.find(id)
	var wrong string
	status := http.StatusOK
	switch {
	case !found:
		status, wrong = http.StatusNotFound, "This ban has ended, or this process has not seen it."
	case r.Method != http.MethodPost:
	case !t.isKey(w, r):
		status, wrong = http.StatusForbidden, "That is not the key."
	default:
		err := t.Lift(r.Context(), of.rule)
		if err == nil {
			b.forget(&of)
			http.Redirect(w, r, "?", http.StatusSeeOther)
			return
		}
		status, wrong = http.StatusBadGateway, "The ban is not lifted: "+err.Error()
	}
	t.write(w, r, status, "lift", "'self'", lifting{of, found, wrong})
}

// A lifting is what the page says that lifts a ban.
type lifting struct {
	banned
	Found bool
	Wrong string
}

// isKey reports whether the form of r has one of t.LiftKeys.
func (t *Tally) isKey(w http.ResponseWriter, r *http.Request) bool {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	given := sha256.Sum256([]byte(r.PostFormValue("key")))
	right := 0
	for _, key := range t.LiftKeys {
		want := sha256.Sum256([]byte(key))
		right |= subtle.ConstantTimeCompare(given[:], want[:])
	}
	return right == 1
}

// canLift reports whether bans can be lifted on the page.
func (t *Tally) canLift() bool { return t.Lift != nil && len(t.LiftKeys) > 0 }
