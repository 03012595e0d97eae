// Gin limits a site of gin-gonic/gin: 20 requests a minute from each address, and
// 2 searches. Type:
//
//	go run ./examples/routers/gin
//	for i in 1 2 3; do curl -si http://127.0.0.1:8080/search | grep -iE '^(HTTP|RateLimit|Retry)'; done
package main

import (
	"log"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

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

	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.Use(gin.Recovery(), throttle(requests))
	router.GET("/", page("Welcome."))
	router.GET("/search", throttle(searches), page("Nothing found."))
	return router
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

func page(text string) gin.HandlerFunc {
	return func(c *gin.Context) {
		d, _ := httpthrottle.DecisionFrom(c.Request.Context())
		c.String(http.StatusOK, "%s You may come back %d times this minute.\n", text, d.Outcomes[0].Remaining)
	}
}
