package login

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/idna"
	"golang.org/x/text/unicode/norm"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/address"
)

// The defaults of a [Sending].
const (
	DefaultSendingIdentifier = "login-send"
	DefaultTotal             = 10_000
)

// ErrRecipients is the error of a text with a comma, a semicolon or a line break: a
// mail program could take it for several recipients. Nothing was counted. Send
// nothing.
var ErrRecipients = errors.New("login: recipient is not a single one: it has a comma, a semicolon or a line break")

// Sending guards what sends messages to an address that a visitor types: reset
// links, magic links, codes by mail or SMS, sign-ups. What is sent counts, and no
// success takes it back:
//
//   - recipient-1 to recipient-4, and recipient: to one recipient 1 message in a
//     minute, 2 in 10 minutes, 3 in an hour, 4 in 6 hours and 5 in a day. So the
//     waits between messages grow, and a recipient waits for a day at most.
//   - range: messages to phone numbers that differ in the last four digits only,
//     against toll fraud, which uses such ranges.
//   - address, network: messages that one address asks for, and its network (an
//     IPv4 /24 or an IPv6 /48). An address of a NAT64 translator with a prefix of
//     its own (64:ff9b:1::/48) has no network.
//   - total: all messages. Each costs money.
//
// A message that one limit holds back is not counted by the others.
//
// Give the client the same answer whether the message is sent or not, and as
// soon: the answer must not tell who has an account, nor whose limit is full.
//
// The exported fields are options. They must be set before the first use. All
// methods are safe for concurrent use.
type Sending struct {
	// Identifier keeps the records apart from others'. Default: "login-send".
	Identifier string

	// Recipient limits the messages to one recipient within a day. Zero means
	// the default. Default: 5 in 24 hours.
	Recipient Limit

	// Range limits the messages to a range of 10,000 phone numbers. A negative
	// Max removes it. Default: 30 in 24 hours.
	Range Limit

	// Address limits the messages that one address asks for, Network those of an
	// IPv4 /24 or an IPv6 /48. A negative Max removes a limit. Default: 20 and
	// 100 in 1 hour.
	Address, Network Limit

	// Total limits all messages. A negative Max removes it. Default: 10,000 in
	// 24 hours.
	Total Limit

	// Country is the calling code of phone numbers that are typed without one,
	// such as "49": "0151 234567" counts as "+49151234567". Default: none; such
	// a number is another recipient than the one with its calling code.
	Country string

	// Shadow lets every message pass, to try the limits out. See
	// [throttler.Rule.Shadow].
	Shadow bool

	// Observe, if set, is called for each message, on the caller's goroutine,
	// with the recipient as it is counted. A blocked outcome named "range" or
	// "total" may be toll fraud: alert on it.
	Observe func(ctx context.Context, recipient string, addr netip.Addr, d throttler.Decision)

	throttler *throttler.Throttler
}

// A Message is what [Sending.Begin] has decided on.
type Message struct {
	// Decision says whether to send. If it is Blocked, send nothing, and answer
	// the client as if it had been sent.
	Decision throttler.Decision

	sending *Sending
}

// NewSending returns a Sending that counts with t. It panics if t is nil.
func NewSending(t *throttler.Throttler) *Sending {
	if t == nil {
		panic("login: NewSending with a nil Throttler")
	}
	return &Sending{throttler: t}
}

// Begin counts a message to recipient, a mail address or a phone number, that addr
// asks for, and decides whether it may be sent. Spellings of a recipient count
// together: see [Sending.Normalize]. Call it whether the recipient has an account
// or not.
//
// The error is [ErrNoAccount] for an empty recipient, [ErrRecipients],
// [ErrNoAddress], [ErrNameTooLong], or wraps [throttler.ErrInvalidRule] if an option is invalid.
// Then there is no Message, and nothing stays counted. A failure of the backend is
// not an error, and fails open: see [throttler.Decision.Err].
func (s *Sending) Begin(ctx context.Context, recipient string, addr netip.Addr) (*Message, error) {
	to := ""
	if len(recipient) <= MaxName {
		to = s.Normalize(recipient)
	}
	switch {
	case !addr.IsValid():
		return nil, ErrNoAddress
	case len(recipient) > MaxName:
		return nil, ErrNameTooLong
	case to == "":
		return nil, ErrNoAccount
	case strings.ContainsAny(recipient, ",;\r\n"):
		return nil, ErrRecipients
	}
	d, err := s.throttler.Authorize(ctx, s.rule(to, addr))
	if err != nil {
		return nil, err
	}
	if s.Observe != nil {
		s.Observe(ctx, to, address.Plain(addr), d)
	}
	return &Message{Decision: d, sending: s}, nil
}

// Cancel takes the message back, if it was not sent after all. The error is the
// backend's. It does not end with ctx. It takes 5 seconds at most.
func (m *Message) Cancel(ctx context.Context) error {
	ctx, cancel := detach(ctx)
	defer cancel()
	return m.sending.throttler.Cancel(ctx, m.Decision)
}

// Lift forgets the messages to recipient. The error is the backend's.
func (s *Sending) Lift(ctx context.Context, recipient string) error {
	rule := s.rule(s.Normalize(recipient), netip.Addr{})
	rule.Either = slices.DeleteFunc(rule.Either, func(c throttler.Condition) bool { return !strings.HasPrefix(c.Name, "recipient") })
	return s.throttler.Reset(ctx, rule)
}

// waits are the times within which 1, 2, 3 and 4 messages are sent to a recipient.
var waits = [...]time.Duration{time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour}

// rule returns the rule of a message to a recipient, as it is counted.
func (s *Sending) rule(to string, addr netip.Addr) throttler.Rule {
	recipient := s.Recipient.or(Limit{Max: 5, TTL: day})
	rule := throttler.Rule{Identifier: cmp.Or(s.Identifier, DefaultSendingIdentifier), CountAuthorizedOnly: true, Shadow: s.Shadow}
	add := func(name, value string, l Limit) {
		if l.Max >= 0 && (value != "" || name == "total") {
			rule.Either = append(rule.Either, throttler.Condition{Name: name, Value: value, Max: l.Max, TTL: l.TTL})
		}
	}
	for i, within := range waits {
		add(fmt.Sprint("recipient-", i+1), to, Limit{Max: i + 1, TTL: within})
	}
	add("recipient", to, recipient)
	add("range", rangeOf(to), s.Range.or(Limit{Max: 30, TTL: day}))
	add("address", address.Text(addr, DefaultIPv6Bits), s.Address.or(Limit{Max: 20, TTL: time.Hour}))
	if address.Plain(addr).Is4() || address.HasNetwork(addr) { // others are all clients of a translator
		add("network", address.Network(addr, 24, 48), s.Network.or(Limit{Max: 100, TTL: time.Hour}))
	}
	add("total", "", s.Total.or(Limit{Max: DefaultTotal, TTL: day}))
	return rule
}

// rangeOf returns the range of a phone number: all but its last four digits. It
// is "" for a mail address.
func rangeOf(to string) string {
	if !strings.HasPrefix(to, "+") || len(to) <= 5 {
		return ""
	}
	return to[:len(to)-4]
}

// Normalize returns the recipient as it is counted. Two spellings that reach the
// same person are one, as far as they tell:
//
//   - A mail address is folded like a name, by the function [Normalize]. What
//     follows a "+" before the "@" is dropped, and the dots there too if the
//     provider ignores them (Gmail). So are quotes, comments in brackets, and what
//     stands around "<alice@example.org>". A domain of other letters is its ASCII
//     form.
//   - A phone number is its digits after a "+". Blanks, brackets, dots, slashes
//     and dashes are dropped. "00" becomes "+", and with Country a single "0"
//     becomes "+" and the calling code.
func (s *Sending) Normalize(recipient string) string {
	if at := strings.LastIndexByte(norm.NFKC.String(recipient), '@'); at >= 0 {
		return mailbox(norm.NFKC.String(recipient))
	}
	return s.number(Normalize(recipient))
}

// mailbox returns the mail address of the person whom text, in NFKC, reaches. It
// drops what the syntax of mail allows around an address and within it.
func mailbox(text string) string {
	if from, to := strings.LastIndexByte(text, '<'), strings.LastIndexByte(text, '>'); 0 <= from && from < to {
		text = text[from+1 : to] // Alice <alice@example.org>
	}
	for comments.MatchString(text) { // innermost first
		text = comments.ReplaceAllString(text, "")
	}
	at := strings.LastIndexByte(text, '@')
	if at < 0 {
		return Normalize(text)
	}
	local := Normalize(strings.NewReplacer(`"`, "", `\`, "").Replace(text[:at]))
	local, _, _ = strings.Cut(strings.ReplaceAll(local, " ", ""), "+")
	domain := strings.TrimSuffix(strings.TrimSpace(text[at+1:]), ".")
	if ascii, err := idna.Lookup.ToASCII(domain); err == nil {
		domain = ascii
	}
	domain = Normalize(domain)
	if domain == "googlemail.com" {
		domain = "gmail.com"
	}
	if domain == "gmail.com" {
		local = strings.ReplaceAll(local, ".", "")
	}
	return local + "@" + domain
}

// comments are those of RFC 5322 that hold no other one.
var comments = regexp.MustCompile(`\([^()]*\)`)

// number returns the phone number in text, or text if it is none.
func (s *Sending) number(text string) string {
	digits := strings.Map(func(r rune) rune {
		if strings.ContainsRune(" ()[]./-\u2010\u2011\u2012\u2013", r) {
			return -1
		}
		return r
	}, strings.Replace(text, "(0)", "", 1))
	plus := strings.HasPrefix(digits, "+")
	digits = strings.TrimPrefix(digits, "+")
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return text
	}
	switch {
	case plus && s.Country != "" && strings.HasPrefix(digits, s.Country+"0"):
		return "+" + s.Country + strings.TrimPrefix(digits, s.Country+"0") // +49 0151
	case plus:
		return "+" + digits
	case strings.HasPrefix(digits, "00"):
		return "+" + digits[2:]
	case s.Country != "" && strings.HasPrefix(digits, "0"):
		return "+" + s.Country + digits[1:]
	}
	return digits
}
