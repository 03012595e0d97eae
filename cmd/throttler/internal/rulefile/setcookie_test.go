package rulefile_test

import (
	"testing"

	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/rulefile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestACookieIsReadAsBrowsersReadIt(t *testing.T) {
	file, err := rulefile.Parse("x", []byte(`{proxy: {server: "http://a", logins: [{for: {path: [/a]}, name: {form: a}, right: {cookie: [session, "DW*"]}}]}}`))
	require.NoError(t, err)
	for _, c := range []struct {
		lines []string
		want  rulefile.Verdict
	}{
		{[]string{"session=a"}, rulefile.Right},
		{[]string{"  session =a; Path=/; HttpOnly"}, rulefile.Right},
		{[]string{`session={"user": "\u00e9", "id": 1}`}, rulefile.Right},
		{[]string{`session="a b,c"; path=/`}, rulefile.Right},
		{[]string{"session=caf\u00e9\xff"}, rulefile.Right},
		{[]string{`session=a\b`}, rulefile.Right},
		{[]string{`session=a"b`}, rulefile.Right},
		{[]string{"other=1", "DWx=\x01"}, rulefile.Right},
		{[]string{"session=a; Max-Age=60; Expires=nonsense"}, rulefile.Right},
		{[]string{"session=a; Max-Age=soon"}, rulefile.Right},
		{[]string{"session=a; Max-Age=99999999999999999999"}, rulefile.Right},
		{[]string{"session=a; Expires=Fri, 31-Dec-99 23:59:59 GMT; Max-Age"}, rulefile.Wrong}, // 1999
		{[]string{"session=a; Expires=Fri, 31-Dec-49 23:59:59 GMT"}, rulefile.Right},          // 2049
		{[]string{"session=a; Expires=Fri Dec 31 23:59:59 9999"}, rulefile.Right},
		{[]string{"session=a; Expires=Friday, 31-Dec-49 23:59:59 GMT"}, rulefile.Right},
		{[]string{"session=a; Expires=31 December 9999"}, rulefile.Wrong}, // in no form that servers use
		{[]string{"session=a", "session=; Max-Age=0; Path=/old"}, rulefile.Right},
		{[]string{"session=deleted; Max-Age=0", "session=a"}, rulefile.Right},
		{[]string{"session=a; Path=/; Domain=example.org", "session=deleted; max-age=0; path=/; domain=.EXAMPLE.org"}, rulefile.Wrong},
		{[]string{"session=a", "session="}, rulefile.Wrong},
		{[]string{`session=""`}, rulefile.Wrong},
		{[]string{"session= ; Path=/"}, rulefile.Wrong},
		{[]string{"session"}, rulefile.Wrong},
		{[]string{"=session"}, rulefile.Wrong},
		{[]string{"other=session=a"}, rulefile.Wrong},
		{[]string{"other=a; session=a"}, rulefile.Wrong},
		{[]string{"Session=a"}, rulefile.Wrong},
		{[]string{"session=a b; Max-Age=-1"}, rulefile.Wrong},
		{[]string{"session=a; Max-Age=000"}, rulefile.Wrong},
		{[]string{"session=deleted; expires=Thu, 01-Jan-70 00:00:01 GMT"}, rulefile.Wrong},
		{[]string{"session=deleted; EXPIRES = Thursday, 1 Jan 1970 0:00:00"}, rulefile.Wrong},
		{[]string{"session=deleted; Expires=Thu Jan  1 00:00:00 1970"}, rulefile.Wrong},
		{nil, rulefile.Wrong},
	} {
		a := answer(200, "", "")
		a.Header["Set-Cookie"] = c.lines
		assert.Equal(t, c.want, file.Proxy.Logins(&rulefile.Request{Target: "/a"})[0].Verdict(a), "%q", c.lines)
	}
}
