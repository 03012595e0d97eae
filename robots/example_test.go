package robots_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/httpthrottle"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/robots"
)

func Example() {
	directory, err := robots.Open(robots.Options{Lists: map[string][]string{"Googlebot": {"testdata/common-crawlers.json"}}})
	if err != nil {
		log.Fatal(err)
	}
	const google = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
	for _, addr := range []string{"66.249.64.1", "8.8.8.8"} {
		who := directory.Identify(google, netip.MustParseAddr(addr))
		fmt.Println(who.Standing, who.Group, who.Name)
	}
	// Output:
	// verified search Googlebot
	// impostor search Googlebot
}

func ExamplePolicy() {
	policy := robots.Policy{Max: map[string]int{"seo-all": 2}} // of all SEO tools together, in a minute
	site := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "Welcome.") })
	limited := httpthrottle.New(throttler.New(memstore.New()), policy.Rule).Handler(site)

	for _, agent := range []string{"AhrefsBot/7.0", "SemrushBot/7", "DotBot/1.2", "Mozilla/5.0"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("User-Agent", agent)
		w := httptest.NewRecorder()
		limited.ServeHTTP(w, r)
		fmt.Println(agent, w.Code)
	}
	// Output:
	// AhrefsBot/7.0 200
	// SemrushBot/7 200
	// DotBot/1.2 429
	// Mozilla/5.0 200
}

// A monitor of your own, with a list of its addresses, has no limit by the default policy.
func ExampleKnown() {
	ours := robots.Robot{Name: "Ourmonitor", Tokens: []string{"Ourmonitor"}, Group: "monitor", Lists: []string{"testdata/telegram.txt"}}
	directory, err := robots.Open(robots.Options{Robots: append(robots.Known(), ours)})
	if err != nil {
		log.Fatal(err)
	}
	who := directory.Identify("Ourmonitor/1.0 okhttp/4.12.0", netip.MustParseAddr("149.154.160.1"))
	fmt.Println(who.Standing, who.Group, who.Name)
	// Output: verified monitor Ourmonitor
}
