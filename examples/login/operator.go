package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/netip"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/tally"
)

// newOperator returns the operator's page: the tally, which lifts a ban for who has the key.
// POST /forget forgets the failed attempts of a name, of an address, or of both.
func newOperator(limits *throttler.Throttler, guard *login.Guard, counts *tally.Tally, key string, logger *log.Logger) http.Handler {
	counts.Look = limits.Peek
	counts.Lift = func(ctx context.Context, rule throttler.Rule) error {
		// With what is counted beside it, or the next attempts would be banned again.
		return guard.LiftRecord(ctx, rule.Either[0].Name, rule.Either[0].Value)
	}
	counts.LiftKeys = []string{key}
	mux := http.NewServeMux()
	mux.Handle("/{$}", counts)
	mux.HandleFunc("POST /forget", func(w http.ResponseWriter, r *http.Request) {
		var addr netip.Addr
		var err error
		if text := r.PostFormValue("address"); text != "" {
			if addr, err = netip.ParseAddr(text); err != nil {
				http.Error(w, "That is not an address.", http.StatusBadRequest)
				return
			}
		}
		if err := guard.Lift(r.Context(), r.PostFormValue("name"), addr); err != nil {
			logger.Print(err)
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		fmt.Fprintln(w, "Forgotten.")
	})
	return local(http.NewCrossOriginProtection().Handler(http.MaxBytesHandler(mux, maxForm)))
}

// local refuses requests for another host than this machine. Otherwise another
// site could point its own name here and read the page (DNS rebinding).
func local(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopback(r.Host) {
			http.Error(w, "This page is for the operator alone.", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}
