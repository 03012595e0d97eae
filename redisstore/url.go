package redisstore

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

// parameters are those that a URL may have.
var parameters = []string{
	"addr", "db", "master_set", "protocol", "client_name", "skip_verify",
	"prefix", "sentinel_username", "sentinel_password",
}

// schemes are those of a URL.
var schemes = []string{"redis", "rediss", "valkey", "valkeys", "unix"}

// parse returns what the URL of Open says. Its errors name no password.
func parse(text string) (option rueidis.ClientOption, prefix string, err error) {
	if scheme, _, ok := strings.Cut(text, "://"); !ok || !slices.Contains(schemes, scheme) {
		return option, "", fmt.Errorf("redisstore: a URL begins with %s://, as redis://127.0.0.1:6379 does", strings.Join(schemes, "://, "))
	}
	u, err := url.Parse(text)
	if err != nil {
		return option, "", fmt.Errorf("redisstore: malformed URL: %w", cause(err))
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return option, "", fmt.Errorf("redisstore: malformed URL: %w", err)
	}
	for name := range query {
		if !slices.Contains(parameters, name) {
			return option, "", fmt.Errorf("redisstore: unknown parameter %q in the URL: it may have %s", name, strings.Join(parameters, ", "))
		}
	}
	option, err = rueidis.ParseURL(text)
	if err != nil {
		return option, "", fmt.Errorf("redisstore: %w", cause(err))
	}
	if option.InitAddress[0] == "" {
		return option, "", errors.New("redisstore: the URL names no socket: unix:///run/redis/redis.sock")
	}
	option.DisableCache = true // old servers and many managed ones cannot track clients
	option.DisableRetry = true // what may be sent again is known here
	if option.TLSConfig != nil {
		option.TLSConfig.ServerName = "" // that of each connection
	}
	if option.Sentinel.MasterSet != "" {
		option.Sentinel.Username = query.Get("sentinel_username")
		option.Sentinel.Password = query.Get("sentinel_password")
	}
	return option, query.Get("prefix"), checkPrefix(query.Get("prefix"))
}

// cause returns what is wrong with a URL, without the URL: it may have a password.
func cause(err error) error {
	var malformed *url.Error
	if errors.As(err, &malformed) {
		return malformed.Err
	}
	return err
}

// checkPrefix returns an error if a key that begins with prefix would not be legal.
func checkPrefix(prefix string) error {
	for i := range len(prefix) {
		if prefix[i] <= ' ' || prefix[i] == 0x7f {
			return fmt.Errorf("redisstore: the prefix %q has a blank or a control character", prefix)
		}
	}
	return nil
}

// address returns the servers of an option, for people.
func address(option rueidis.ClientOption) string {
	list := strings.Join(option.InitAddress, ",")
	if option.Sentinel.MasterSet != "" {
		return option.Sentinel.MasterSet + "@" + list
	}
	if _, _, err := net.SplitHostPort(list); err != nil && len(option.InitAddress) == 1 {
		return "unix:" + list
	}
	return list
}
