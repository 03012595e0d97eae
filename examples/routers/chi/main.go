// Chi limits a site of go-chi/chi: 20 requests a minute from each address, and 2
// searches. Type:
//
//	go run ./examples/routers/chi
//	for i in 1 2 3; do curl -si http://127.0.0.1:8080/search | grep -iE '^(HTTP|RateLimit|Retry)'; done
package main

import (
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

func main() {
	log.Print("listening on http://127.0.0.1:8080/")
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", site(throttler.New(memstore.New()))))
}

// site returns the site, limited by t.
func site(t *throttler.Throttler) http.Handler {
	var source httpthrottle.Source // no proxy: the peer is the client
	requests := httpthrottle.New(t, source.PerAddress("site", 20, time.Minute))
	requests.Public = []string{"address"}
	searches := httpthrottle.New(t, source.PerAddress("search", 2, time.Minute))
	searches.Public = []string{"address"}

	router := chi.NewRouter()
	router.Use(requests.Handler)
	router.Get("/", page("Welcome."))
	router.With(searches.Handler).Get("/search", page("Nothing found."))
	return router
}

func page(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		d, _ := httpthrottle.DecisionFrom(r.Context())
		fmt.Fprintf(w, "%s You may come back %d times this minute.\n", text, d.Outcomes[0].Remaining)
	}
}
