package main

import (
	"bytes"
	"context"
	_ "embed"
	"log"
	"net/netip"
	"text/template"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
)

// mails tell owners that somebody tries their name.
type mails struct {
	links   links
	sending *login.Sending
	nobody  *login.Sending // what would be sent to names without an account
	url     string         // of the site
	log     *log.Logger
	send    func(mail) // here it only prints: a real site sends
}

// A mail is one to an owner.
type mail struct {
	To, Name string
	Addr     netip.Addr // who tries the name
	Link     string
	Lasts    time.Duration // of Link
}

// newMails returns no mails yet, with limits over limits.
func newMails(limits *throttler.Throttler, o *options, logger *log.Logger) *mails {
	m := &mails{links: links{o.key, limits}, sending: login.NewSending(limits), nobody: login.NewSending(limits), url: o.url, log: logger}
	m.nobody.Identifier = "login-send-nobody" // so that made-up names use up no mails
	m.send = func(x mail) { logger.Print("a mail that is not sent:\n" + x.Text()) }
	return m
}

//go:embed templates/mail.txt
var mailText string

var mailTemplate = template.Must(template.New("mail").Funcs(template.FuncMap{"wait": wait}).Parse(mailText))

// Text returns the mail as it is sent.
func (m mail) Text() string {
	var text bytes.Buffer
	if err := mailTemplate.Execute(&text, m); err != nil {
		panic(err) // only for a field that there is not
	}
	return text.String()
}

// tell mails the owner of an account that addr tries its name, not too often. name
// is as the guard counts it. A name without an account (exists is false) takes as
// much work, so the time of an answer does not tell which names exist.
func (m *mails) tell(ctx context.Context, name string, owner account, exists bool, addr netip.Addr) {
	sending, to := m.nobody, name+"@nobody.invalid"
	if exists {
		sending, to = m.sending, owner.mail
	}
	message, err := sending.Begin(ctx, to, addr)
	if err != nil {
		m.log.Print(err)
		return
	}
	if message.Decision.Status == throttler.Blocked {
		return
	}
	link := m.url + "/let-in?token=" + m.links.sign(name, time.Now().Add(linkLasts))
	if !exists {
		return
	}
	m.send(mail{to, owner.name, addr, link, linkLasts})
}
