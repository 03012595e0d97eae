// Routers is a site of go-chi/chi, labstack/echo or gin-gonic/gin, limited to 20
// requests a minute from each address, and 2 searches. Type:
//
//	go run ./examples/routers chi
//	for i in 1 2 3; do curl -si http://127.0.0.1:8080/search | grep -iE '^(HTTP|RateLimit|Retry)'; done
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
)

func main() {
	if len(os.Args) != 2 || sites[os.Args[1]] == nil {
		log.Fatal("usage: routers chi|echo|gin")
	}
	log.Print("listening on http://127.0.0.1:8080/")
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", site(sites[os.Args[1]])))
}

// site returns a site whose requests are limited.
func site(routed func(requests, searches *httpthrottle.Middleware) http.Handler) http.Handler {
	t := throttler.New(memstore.New())
	var source httpthrottle.Source // no proxy: the peer is the client
	requests := httpthrottle.New(t, source.PerAddress("site", 20, time.Minute))
	searches := httpthrottle.New(t, source.PerAddress("search", 2, time.Minute))
	requests.Public, searches.Public = []string{"address"}, []string{"address"}
	return routed(requests, searches)
}

// sites has the same site for each router.
var sites = map[string]func(requests, searches *httpthrottle.Middleware) http.Handler{
	"chi": func(requests, searches *httpthrottle.Middleware) http.Handler {
		router := chi.NewRouter()
		router.Use(requests.Handler)
		router.Get("/", welcome)
		router.With(searches.Handler).Get("/search", search)
		return router
	},
	"echo": func(requests, searches *httpthrottle.Middleware) http.Handler {
		router := echo.New()
		router.Use(echo.WrapMiddleware(requests.Handler))
		router.GET("/", echo.WrapHandler(http.HandlerFunc(welcome)))
		router.GET("/search", echo.WrapHandler(http.HandlerFunc(search)), echo.WrapMiddleware(searches.Handler))
		return router
	},
	"gin": func(requests, searches *httpthrottle.Middleware) http.Handler {
		gin.SetMode(gin.ReleaseMode)
		router := gin.New()
		router.Use(gin.Recovery(), throttle(requests))
		router.GET("/", gin.WrapF(welcome))
		router.GET("/search", throttle(searches), gin.WrapF(search))
		return router
	},
}

// throttle returns a handler for gin that passes on only the requests that
// limit allows.
func throttle(limit *httpthrottle.Middleware) gin.HandlerFunc {
	return func(c *gin.Context) {
		allowed := false
		limit.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			allowed = true
			c.Request = r // with the Decision
			c.Next()
		})).ServeHTTP(c.Writer, c.Request)
		if !allowed {
			c.Abort()
		}
	}
}

func welcome(w http.ResponseWriter, r *http.Request) { answer(w, r, "Welcome.") }
func search(w http.ResponseWriter, r *http.Request)  { answer(w, r, "Nothing found.") }

func answer(w http.ResponseWriter, r *http.Request, text string) {
	d, _ := httpthrottle.DecisionFrom(r.Context())
	fmt.Fprintf(w, "%s You may come back %d times this minute.\n", text, d.Outcomes[0].Remaining)
}
