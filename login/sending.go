package login

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/mail"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/idna"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/internal/address"
)

// ErrRecipients is the error of a text that is neither one mail address, as package
// net/mail reads it, nor one phone number. A mail program could take it for another
// recipient than the one that was counted. Nothing was counted. Send nothing.
var ErrRecipients = errors.New("login: recipient is neither one mail address nor one phone number")

// Sending guards what sends messages to an address that a visitor types: reset
// links, magic links, codes by mail or SMS, sign-ups. What is sent counts, and no
// success takes it back:
//
//   - recipient-1 to recipient-4, and recipient: to one recipient 1 message in a
//     minute, 2 in 10 minutes, 3 in an hour, 4 in 6 hours and 5 in a day. So the
//     waits between messages grow, and a recipient waits for a day at most.
//   - range: messages to phone numbers that differ in the last four digits only,
//     against toll fraud, which uses such ranges. 30 in a day.
//   - address, network, network-32: messages that one address asks for (20 in an
//     hour), its network, an IPv4 /24 or an IPv6 /48 (100), and an IPv6 /32 (300).
//     An address of a NAT64 translator with a prefix of its own (64:ff9b:1::/48) has
//     no network.
//   - total: all messages, 1,000 in an hour. Each costs money.
//   - total-new: messages to recipients that are not known, three quarters of
//     total. So attackers who ask for messages to strangers leave a quarter to the
//     recipients that [Sending.Recognize] has made known.
//
// A message that one limit holds back is not counted by the others.
//
// Send to [Message.To]: it is the recipient that was counted, whatever else a mail
// program or an SMS provider would have read in what was typed.
//
// Give the client the same answer whether the message is sent or not, and as
// soon: the answer must not tell who has an account, nor whose limit is full.
//
// The exported fields are options. They must be set before the first use. All
// methods are safe for concurrent use.
type Sending struct {
	// Identifier keeps the records apart from others'. Default: "login-send".
	Identifier string

	// Limits are limits other than the defaults above, by their names: recipient (of
	// 5 in 24 hours), range, address, network, network-32 and total. A negative Max removes
	// one.
	Limits map[string]Limit

	// Country is the calling code of phone numbers that are typed without one,
	// such as "49": "0151 234567" counts as "+49151234567". Default: none; such
	// a number is another recipient than the one with its calling code.
	Country string

	// Shadow lets every message pass, to try the limits out. See
	// [throttler.Rule.Shadow].
	Shadow bool

	// Observe, if set, is called for each message, on the caller's goroutine,
	// with the recipient as it is counted. A blocked outcome named "range", "total"
	// or "total-new" may be toll fraud: alert on it.
	Observe func(ctx context.Context, recipient string, addr netip.Addr, d throttler.Decision)

	throttler *throttler.Throttler
}

// A Message is what [Sending.Begin] has decided on.
type Message struct {
	// Decision says whether to send. If it is Blocked, send nothing, and answer
	// the client as if it had been sent.
	Decision throttler.Decision

	// To is the recipient to send to: the mail address alone, or the phone number as
	// "+", calling code and number. Without [Sending.Country], a number that was typed
	// without its calling code has none.
	To string

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
// asks for, and decides whether it may be sent. Call it whether the recipient has an
// account or not. Two spellings that reach the same person count together, as far as
// they tell:
//
//   - A mail address counts without the name and the comments around it, folded like
//     a name by the function [Normalize]. What follows a "+" before the "@" is dropped,
//     and the dots there too if the provider ignores them (Gmail). A domain of other
//     letters is its ASCII form.
//   - A phone number counts as its digits after a "+", whatever script they are in.
//     The exit code of the Country becomes "+" ("00"; "011" in North America). A trunk
//     prefix is dropped ("0"; "1", "8" and "06" where they are dialed).
//
// The error is [ErrNoAccount] for an empty recipient, [ErrRecipients],
// [ErrNoAddress], [ErrNameTooLong], or wraps [throttler.ErrInvalidRule] if an option is invalid.
// Then there is no Message, and nothing stays counted. A failure of the backend is
// not an error, and fails open: see [throttler.Decision.Err].
func (s *Sending) Begin(ctx context.Context, recipient string, addr netip.Addr) (*Message, error) {
	if !addr.IsValid() {
		return nil, ErrNoAddress
	}
	to, err := s.recipient(recipient)
	if err != nil {
		return nil, err
	}
	for name := range s.Limits {
		if _, ok := sendingLimits[name]; !ok {
			return nil, fmt.Errorf("%w: Sending.Limits has %q, which is the name of no limit", throttler.ErrInvalidRule, name)
		}
	}
	rule := s.rule(to.counted, addr)
	d, err := s.throttler.Authorize(ctx, rule)
	if err == nil && d.WouldBlock && s.isKnown(ctx, to.counted, &d) {
		rule.Either = slices.DeleteFunc(rule.Either, func(c throttler.Condition) bool { return c.Name == byTotalNew })
		d, err = s.throttler.Authorize(ctx, rule)
	}
	if err != nil {
		return nil, err
	}
	if s.Observe != nil {
		s.Observe(ctx, to.counted, address.Plain(addr), d)
	}
	return &Message{Decision: d, To: to.sent, sending: s}, nil
}

func (s *Sending) identifier() string { return cmp.Or(s.Identifier, "login-send") }

// isKnown reports whether d blocks as a new recipient's only, and to is none.
func (s *Sending) isKnown(ctx context.Context, to string, d *throttler.Decision) bool {
	if slices.ContainsFunc(d.Outcomes, func(o throttler.Outcome) bool { return o.Blocked && o.Name != byTotalNew }) {
		return false
	}
	known, err := s.throttler.Peek(ctx, s.knownRule(to))
	return err == nil && known.Err == nil && known.Outcomes[0].Remaining == 0
}

// knownRule returns the rule whose bucket is filled where a recipient is known.
func (s *Sending) knownRule(to string) throttler.Rule {
	return throttler.Rule{
		Identifier: s.identifier() + "-known",
		Either: []throttler.Condition{{
			Name: "recipient", Value: to, Max: 2, TTL: 2 * recipientKnownFor, Algorithm: throttler.LeakyBucket,
		}},
	}
}

// recipientKnownFor is how long a recipient is known, and up to twice that.
const recipientKnownFor = 180 * day

// Recognize makes recipient known for 180 to 360 days. Call it when a message has
// reached somebody who has an account: its link was opened, or its code was right.
//
// The error is as of [Sending.Begin], or the backend's.
func (s *Sending) Recognize(ctx context.Context, recipient string) error {
	to, err := s.recipient(recipient)
	if err != nil {
		return err
	}
	return pour(ctx, s.throttler, s.knownRule(to.counted))
}

// Cancel takes the message back, if it was not sent after all. The error is the
// backend's. It does not end with ctx. It takes 5 seconds at most.
func (m *Message) Cancel(ctx context.Context) error {
	ctx, cancel := detach(ctx)
	defer cancel()
	return m.sending.throttler.Cancel(ctx, m.Decision)
}

// Lift forgets the messages to recipient. The error is as of [Sending.Begin], or the
// backend's.
func (s *Sending) Lift(ctx context.Context, recipient string) error {
	to, err := s.recipient(recipient)
	if err != nil {
		return err
	}
	rule := s.rule(to.counted, netip.Addr{})
	rule.Either = slices.DeleteFunc(rule.Either, func(c throttler.Condition) bool { return !strings.HasPrefix(c.Name, "recipient") })
	return s.throttler.Reset(ctx, rule)
}

// waits are the times within which 1, 2, 3 and 4 messages are sent to a recipient.
var waits = [...]time.Duration{time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour}

const byTotalNew = "total-new"

// sendingLimits are the defaults.
var sendingLimits = map[string]Limit{
	"recipient":  {Max: 5, TTL: day},
	"range":      {Max: 30, TTL: day},
	"address":    {Max: 20, TTL: time.Hour},
	"network":    {Max: 100, TTL: time.Hour},
	"network-32": {Max: 300, TTL: time.Hour},
	"total":      {Max: 1000, TTL: time.Hour},
}

// rule returns the rule of a message to a recipient, as it is counted.
func (s *Sending) rule(to string, addr netip.Addr) throttler.Rule {
	limit := func(name string) Limit { return s.Limits[name].or(sendingLimits[name]) }
	rule := throttler.Rule{Identifier: s.identifier(), CountAuthorizedOnly: true, Shadow: s.Shadow}
	add := func(name, value string, l Limit) {
		if l.Max >= 0 && (value != "" || strings.HasPrefix(name, "total")) {
			rule.Either = append(rule.Either, throttler.Condition{Name: name, Value: value, Max: l.Max, TTL: l.TTL})
		}
	}
	for i, within := range waits {
		add(fmt.Sprint("recipient-", i+1), to, Limit{Max: i + 1, TTL: within})
	}
	add("recipient", to, limit("recipient"))
	add("range", rangeOf(to), limit("range"))
	add("address", address.Text(addr, defaultIPv6Bits), limit("address"))
	if address.Plain(addr).Is4() || address.HasNetwork(addr) { // others are all clients of a translator
		add("network", address.Network(addr, 24, 48), limit("network"))
	}
	if address.HasNetwork(addr) {
		add("network-32", address.Text(addr, 32), limit("network-32"))
	}
	total := limit("total")
	add("total", "", total)
	total.Max -= total.Max / 4 // a negative one stays below 0
	add(byTotalNew, "", total)
	return rule
}

// rangeOf returns the range of a phone number: all but its last four digits. It
// is "" for a mail address.
func rangeOf(to string) string {
	if strings.Contains(to, "@") || len(to) <= 4 {
		return ""
	}
	return to[:len(to)-4]
}

// A recipient is whom a message goes to.
type recipient struct {
	counted string // the same for all spellings
	sent    string // what to send to
}

// recipient returns whom text names.
func (s *Sending) recipient(text string) (recipient, error) {
	text = strings.TrimSpace(text)
	switch {
	case len(text) > MaxName:
		return recipient{}, ErrNameTooLong
	case text == "":
		return recipient{}, ErrNoAccount
	case strings.ContainsAny(text, ",;\r\n"):
		return recipient{}, ErrRecipients
	}
	if parsed, err := mail.ParseAddress(text); err == nil {
		return recipient{mailbox(parsed.Address), addrSpec(parsed.Address)}, nil
	}
	number, ok := s.number(text)
	if !ok {
		return recipient{}, ErrRecipients
	}
	return recipient{number, number}, nil
}

// addrSpec returns a parsed address as a mail program reads it.
func addrSpec(parsed string) string {
	quoted := (&mail.Address{Address: parsed}).String()
	return strings.TrimSuffix(strings.TrimPrefix(quoted, "<"), ">")
}

// mailbox returns a parsed address as it is counted.
func mailbox(parsed string) string {
	at := strings.LastIndexByte(parsed, '@')
	local, _, _ := strings.Cut(strings.ReplaceAll(Normalize(parsed[:at]), " ", ""), "+")
	domain := parsed[at+1:]
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
