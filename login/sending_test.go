package login_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// A mail is a Sending with the steps of a test.
type mail struct {
	*login.Sending
	t *testing.T
}

func mailOn(t *testing.T) mail { return mail{login.NewSending(throttler.New(memstore.New())), t} }

// sends reports whether a message is sent, and otherwise after what time.
func (m mail) sends(to string, from netip.Addr) (bool, time.Duration) {
	m.t.Helper()
	message, err := m.Begin(m.t.Context(), to, from)
	require.NoError(m.t, err)
	return message.Decision.Status == throttler.Authorized, message.Decision.RetryAfter
}

// Ten thousand addresses ask for messages to one recipient, in all spellings.
func TestARecipientGetsFiveMessagesADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mailOn(t)
		sent, days := 0, 3
		for i := range days * 10_000 {
			to := []string{"alice@example.org", " Alice@Example.org", "alice+x" + fmt.Sprint(i) + "@example.org", "<ALICE@EXAMPLE.ORG>"}[i%4]
			if ok, _ := m.sends(to, addr(i)); ok {
				sent++
			}
			time.Sleep(24 * time.Hour / 10_000)
		}
		require.Equal(t, 5*days, sent)
	})
}

// The owner waits, but never longer than the page says.
func TestWaitsBetweenMessagesGrowToADayAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mailOn(t)
		var waits []time.Duration
		for range 6 {
			ok, _ := m.sends("alice@example.org", home)
			require.True(t, ok)
			ok, wait := m.sends("alice@example.org", away)
			require.False(t, ok)
			waits = append(waits, wait)
			time.Sleep(wait)
		}
		const minute = time.Minute
		require.Equal(t, []time.Duration{minute, 9 * minute, 50 * minute, 300 * minute, 1080 * minute, minute}, waits)
	})
}

// How many of a thousand messages are sent, that others ask for at the same moment.
func TestMessagesAreLimited(t *testing.T) {
	user := func(i int) string { return fmt.Sprintf("user%d@example.org", i) }
	number := func(i int) string { return fmt.Sprintf("9123%04d", i) }
	v6 := func(format string) func(int) netip.Addr {
		return func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(format, i+1)) }
	}
	type row struct {
		what    string
		country string
		to      func(int) string
		from    func(int) netip.Addr
		sent    int
		blocked string // the limit that most of the others meet
	}
	rows := []row{
		{"a recipient", "", same("alice@example.org"), spread, 1, "recipient-1"},
		{"an address", "", user, same(home), 20, "address"},
		{"an IPv6 /64", "", user, v6("2001:db8::%x"), 20, "address"},
		{"an IPv4 /24", "", user, func(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}) }, 100, "network"},
		{"an IPv6 /48", "", user, v6("2001:db8:0:%x::1"), 100, "network"},
		{"an IPv6 /32", "", user, v6("2001:db8:%x::1"), 300, "network-32"},
		{"the internet", "", user, spread, 750, "total-new"},
		{"its NAT64", "", user, v6("64:ff9b:1::%x"), 750, "total-new"},
		{"toll fraud", "", func(i int) string { return fmt.Sprintf("+882 13 00 %04d", i) }, spread, 30, "range"},
	}
	for _, country := range []string{"", "1", "7", "34", "36", "39", "45", "47", "48", "49", "52", "65", "91"} {
		rows = append(rows, row{"toll fraud in " + country, country, number, spread, 30, "range"})
	}
	for _, r := range rows {
		t.Run(r.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := mailOn(t)
				m.Country = r.country
				noticed, sent := 0, 0
				m.Observe = func(_ context.Context, _ string, _ netip.Addr, d throttler.Decision) {
					for _, o := range d.Outcomes {
						if o.Name == r.blocked && o.Blocked {
							noticed++
						}
					}
				}
				for i := range 1000 {
					if ok, _ := m.sends(r.to(i), r.from(i)); ok {
						sent++
					}
				}
				require.Equal(t, r.sent, sent)
				require.Equal(t, 1000-sent, noticed)
				ok, _ := m.sends("+33 6 12 34 56 78", away)
				require.Equal(t, r.blocked != "total-new", ok, "others get theirs")
			})
		})
	}
}

func TestAMessageThatWasNotSentIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mailOn(t)
		for range 10 {
			message, err := m.Begin(t.Context(), "alice@example.org", home)
			require.NoError(t, err)
			require.Equal(t, throttler.Authorized, message.Decision.Status)
			require.NoError(t, message.Cancel(t.Context()))
		}
		ok, _ := m.sends("alice@example.org", home)
		require.True(t, ok)
		ok, _ = m.sends("alice@example.org", home)
		require.False(t, ok)
		require.NoError(t, m.Lift(t.Context(), "Alice@example.org"))
		ok, _ = m.sends("alice@example.org", home)
		require.True(t, ok)
	})
}

// A text that a mail program could take for another recipient, or for several, is
// none: each text with the same victim in it would have messages of its own.
func TestOneRecipientAtATime(t *testing.T) {
	m := login.NewSending(throttler.New(memstore.New()))
	m.Country = "49"
	for _, recipients := range []string{
		"alice@example.com,x@example.com", "alice@example.com; x", "alice@example.com\r\nBcc: x@example.com", "alice(hi)@example.com", "alice@example.com.", "alice @ example.com", "+49151,+49152",
		"<alice@example.com> <a@example.com>", "alice@example.com <a@example.com>", "alice@example.com bob@example.com",
		"a@b@c", "<@>", "()@", "alice", "no number 12 at all", "0151 2345678 x1", "0151 2345678#1", "+49+151", "+49 151 23 45 67 89 01 23 45", "+1",
	} {
		_, err := m.Begin(t.Context(), recipients, home)
		require.ErrorIs(t, err, login.ErrRecipients, recipients)
	}
}

// Each row is one recipient: what it is counted as, what to send to for the first
// spelling, and the spellings.
func TestSpellingsOfARecipientAreOne(t *testing.T) {
	for _, row := range []struct {
		country, counted, to string
		spellings            []string
	}{
		{"", "alice@gmail.com", "alice@gmail.com", []string{"alice@gmail.com", "A.l.i.c.e+news@GoogleMail.com", " alice@gmail.com "}},
		{"", "a.lice@example.org", "A.Lice+1+2@example.org", []string{"A.Lice+1+2@example.org", "a.lice@example.org"}},
		{"", "alice@example.com", "alice@example.com", []string{
			`Alice <"alice"@example.com>`, "alice@example.com", `"al\ice"@example.com`,
			"alice@example.com (Alice (work))", "<Alice+x@EXAMPLE.com>",
		}},
		{"", "alicesmith@example.com", `"alice smith"@example.com`, []string{`"alice smith"@example.com`}},
		{"", "alice@xn--mnchen-3ya.de", "alice@münchen.de", []string{"alice@münchen.de", "alice@MÜNCHEN.de", "alice@xn--mnchen-3ya.de", "alice@mu\u0308nchen.de"}},
		{"49", "+491512345678", "+491512345678", []string{
			"+49 0151 2345678", "+49 151 234 5678", "0049-151/2345678", "0151 2345678", "+49 (0)151 2345678", "(0151) 234.5678", "＋49１512345678",
			"++49 151 2345678", "tel:+491512345678", "TEL:0151-2345678", "0151\u22122345678", "٠١٥١ ٢٣٤٥٦٧٨", "०१५१ 2345678", "+0049 151 2345678", "491512345678",
		}},
		{"1", "+12025550123", "+12025550123", []string{"(202) 555-0123", "1-202-555-0123", "+1 202 555 0123", "2025550123", "+1 (1) 202 555 0123", "011 1 202 555 0123", "001 202 555 0123"}},
		{"7", "+79123456789", "+79123456789", []string{"8 (912) 345-67-89", "912 345 67 89", "+7 912 3456789", "79123456789", "+7 8 912 345 67 89", "8~10 7 912 3456789"}},
		{"7", "+78123456789", "+78123456789", []string{"812 345 67 89", "8 812 345 67 89", "+7 812 3456789"}},
		{"34", "+34612345678", "+34612345678", []string{"612 345 678", "+34 612345678", "34612345678", "0034 612345678"}},
		{"36", "+36301234567", "+36301234567", []string{"06 30 123 4567", "30 123 4567", "+36 30 1234567", "+36 06 30 1234567"}},
		{"39", "+390612345678", "+390612345678", []string{"06 1234 5678", "+39 06 12345678", "0039 06 12345678"}},
		{"39", "+393912345678", "+393912345678", []string{"391 2345678", "+39 391 2345678", "393912345678"}},
		{"45", "+4545123456", "+4545123456", []string{"45 12 34 56", "+45 45123456", "4545123456"}},
		{"47", "+4791234567", "+4791234567", []string{"912 34 567", "+47 91234567", "4791234567"}},
		{"48", "+48501234567", "+48501234567", []string{"501 234 567", "0 501 234 567", "48501234567"}},
		{"52", "+525512345678", "+525512345678", []string{"55 1234 5678", "01 55 1234 5678", "+52 1 55 1234 5678", "044 55 1234 5678", "525512345678"}},
		{"65", "+6591234567", "+6591234567", []string{"9123 4567", "001 65 9123 4567", "+65 91234567", "6591234567"}},
		{"91", "+919123456789", "+919123456789", []string{"91234 56789", "091234 56789", "+91 91234 56789", "919123456789"}},
		{"+49", "+33612345678", "+33612345678", []string{"+33 6 12 34 56 78", "+33 (0)6 12 34 56 78", "+33 06 12 34 56 78"}},
		{"", "+4415123", "+4415123", []string{"+44 15123", "0044 015123"}},
		{"", "01512345678", "01512345678", []string{"0151 2345678", "(0151) 234-5678"}},
	} {
		m := login.NewSending(throttler.New(memstore.New()))
		m.Country, m.Shadow = row.country, true
		var counted string
		m.Observe = func(_ context.Context, to string, _ netip.Addr, _ throttler.Decision) { counted = to }
		for i, spelling := range row.spellings {
			message, err := m.Begin(t.Context(), spelling, home)
			require.NoError(t, err, spelling)
			require.Equal(t, row.counted, counted, "%s in %s", spelling, row.country)
			if i == 0 {
				require.Equal(t, row.to, message.To)
			}
		}
	}
}

// The digits of every script are digits.
func TestDigitsOfAllScripts(t *testing.T) {
	m := login.NewSending(throttler.New(memstore.New()))
	for r := range rune(0x10FFFF) {
		if unicode.Is(unicode.Nd, r) && unicode.Is(unicode.Nd, r-1) == false {
			var seven []rune
			for n := range rune(10) {
				seven = append(seven, r+n)
			}
			message, err := m.Begin(t.Context(), "+49"+string(seven), addr(int(r)))
			require.NoError(t, err, "%U", r)
			require.Equal(t, "+49123456789", message.To, "%U", r)
			require.NoError(t, message.Cancel(t.Context()))
		}
	}
}

// The owner of an IPv6 /29, and a botnet after that: the known get their messages.
func TestAFloodLeavesKnownRecipientsAShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mailOn(t)
		require.NoError(t, m.Recognize(t.Context(), "Alice@example.org"))
		sent := 0
		for i := range 10_000 {
			from := netip.MustParseAddr(fmt.Sprintf("2001:db%d:%x::1", i%8, i))
			if ok, _ := m.sends(fmt.Sprintf("user%d@example.org", i), from); ok {
				sent++
			}
		}
		require.Equal(t, 750, sent)
		for i := range 1000 {
			m.sends(fmt.Sprintf("more%d@example.org", i), spread(i))
		}
		ok, _ := m.sends("bob@example.org", home)
		require.False(t, ok, "a stranger")
		ok, _ = m.sends("alice@example.org", home)
		require.True(t, ok, "known")
		time.Sleep(time.Hour + time.Minute)
		ok, _ = m.sends("bob@example.org", home)
		require.True(t, ok, "an hour later")
	})
}

func TestSendingSaysWhatIsWrong(t *testing.T) {
	m, ctx := login.NewSending(throttler.New(memstore.New())), t.Context()
	for want, test := range map[error]struct {
		to   string
		from netip.Addr
	}{
		login.ErrNoAccount:   {" ", home},
		login.ErrNoAddress:   {"alice@example.org", netip.Addr{}},
		login.ErrNameTooLong: {strings.Repeat("x", 1025), home},
	} {
		message, err := m.Begin(ctx, test.to, test.from)
		require.ErrorIs(t, err, want)
		require.Nil(t, message)
	}
	for _, wrong := range []limits{{"total": {TTL: -1}}, {"totals": {Max: 5}}} {
		m.Limits = wrong
		_, err := m.Begin(ctx, "alice@example.org", home)
		require.ErrorIs(t, err, throttler.ErrInvalidRule)
	}
	require.Panics(t, func() { login.NewSending(nil) })
}
