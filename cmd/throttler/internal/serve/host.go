package serve

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// onlyByAddress answers requests whose Host is an address or a name without a
// dot, such as localhost. A web page could point a name of its own at this
// service and read it in a visitor's browser (DNS rebinding). Such a name has a
// dot.
func onlyByAddress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isAddressOrLocal(r.Host) {
			http.Error(w, "Ask by the address of this service, not by a name.", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isAddressOrLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	_, err := netip.ParseAddr(host)
	return err == nil || !strings.Contains(host, ".")
}
