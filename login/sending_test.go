package login_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
			to := []string{"alice@example.org", " Alice@Example.org", "alice+x" + fmt.Sprint(i) + "@example.org", "ALICE@EXAMPLE.ORG."}[i%4]
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
		for range 12 {
			ok, _ := m.sends("alice@example.org", home)
			require.True(t, ok)
			ok, wait := m.sends("alice@example.org", away)
			require.False(t, ok)
			waits = append(waits, wait)
			time.Sleep(wait)
		}
		for i := range 4 {
			require.LessOrEqual(t, waits[i], waits[i+1])
		}
		for _, wait := range waits {
			require.LessOrEqual(t, wait, 24*time.Hour)
		}
	})
}

// Toll fraud: ten thousand numbers of one range, each from another address.
func TestTollFraudIsHeldAndNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mailOn(t)
		noticed := 0
		m.Observe = func(_ context.Context, to string, _ netip.Addr, d throttler.Decision) {
			for _, o := range d.Outcomes {
				if o.Name == "range" && o.Blocked {
					require.True(t, strings.HasPrefix(to, "+8821300"))
					noticed++
				}
			}
		}
		sent := 0
		for i := range 10_000 {
			if ok, _ := m.sends(fmt.Sprintf("+882 13 00 %04d", i), spread(i)); ok {
				sent++
			}
		}
		require.Equal(t, 30, sent)
		require.Equal(t, 10_000-30, noticed)
		ok, _ := m.sends("+49 151 2345678", home)
		require.True(t, ok, "others get theirs")
	})
}

func TestMessagesAreLimitedByAddressNetworkAndInAll(t *testing.T) {
	for what, test := range map[string]struct {
		from func(i int) netip.Addr
		sent int
	}{
		"an address":   {func(int) netip.Addr { return home }, 20},
		"an IPv6 /64":  {func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1)) }, 20},
		"an IPv4 /24":  {func(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}) }, 100},
		"an IPv6 /48":  {func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("2001:db8:0:%x::1", i)) }, 100},
		"the internet": {spread, 200},
		"its NAT64":    {func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("64:ff9b:1::%x", i+1)) }, 200},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := mailOn(t)
			m.Total.Max = 200
			sent := 0
			for i := range 1000 {
				if ok, _ := m.sends(fmt.Sprintf("user%d@example.org", i), test.from(i)); ok {
					sent++
				}
			}
			require.Equal(t, test.sent, sent, what)
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

// What a mail program could take for several recipients is no recipient: each text
// with the same victim in it would have messages of its own.
func TestOneRecipientAtATime(t *testing.T) {
	m := login.NewSending(throttler.New(memstore.New()))
	for _, recipients := range []string{"alice@example.com,x@example.com", "alice@example.com; x", "alice@example.com\r\nBcc: x@example.com", "+49151,+49152"} {
		_, err := m.Begin(t.Context(), recipients, home)
		require.ErrorIs(t, err, login.ErrRecipients, recipients)
	}
}

func TestSpellingsOfARecipientAreOne(t *testing.T) {
	m := login.NewSending(throttler.New(memstore.New()))
	m.Country = "49"
	for want, spellings := range map[string][]string{
		"alice@gmail.com":    {"alice@gmail.com", "A.l.i.c.e+news@GoogleMail.com", " alice@gmail.com. "},
		"a.lice@example.org": {"a.lice@example.org", "A.Lice+1+2@example.org"},
		"alice@example.com": {
			"alice@example.com", `"alice"@example.com`, `"al\ice"@example.com`, `al"ice"@example.com`, "alice(hi)@example.com",
			"alice @ example.com", "alice@example.com (Alice (work))", "Alice <alice@example.com>", "<Alice+x@EXAMPLE.com.>",
			"alice＠ｅxample.com", "(x)alice@(y)example.com",
		},
		"alice@xn--mnchen-3ya.de": {"alice@münchen.de", "alice@MÜNCHEN.de", "alice@xn--mnchen-3ya.de", "alice@mu\u0308nchen.de"},
		"a@b@c":                   {"a@b@c"},
		"@":                       {"<@>", "()@"},
		"+491512345678":           {"+49 0151 2345678", "+49 151 234 5678", "0049-151/2345678", "0151 2345678", "+49 (0)151 2345678", "(0151) 234.5678", "＋49１512345678"},
		"+4415123":                {"+44 15123"},
		"no number 12 at all":     {"No number 12 at all"},
	} {
		for _, spelling := range spellings {
			require.Equal(t, want, m.Normalize(spelling), spelling)
		}
	}
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
	m.Total.TTL = -1
	_, err := m.Begin(ctx, "alice@example.org", home)
	require.ErrorIs(t, err, throttler.ErrInvalidRule)
	require.Panics(t, func() { login.NewSending(nil) })
}
