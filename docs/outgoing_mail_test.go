package docs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
)

type queue interface {
	Next(ctx context.Context) (message, error) // lends a message, until Remove or PutBack
	Remove(m message)                          // it was sent
	PutBack(m message)                         // for another try, in a minute
}

// sendAll sends the messages of q until ctx ends.
func sendAll(ctx context.Context, limits *throttler.Throttler, q queue) error {
	var sending sync.WaitGroup
	defer sending.Wait()
	for {
		m, err := q.Next(ctx)
		if err != nil {
			return err
		}
		sending.Go(func() { // each waits by itself: no recipient holds up others
			if err := sendInTurn(ctx, limits, m); err != nil {
				log.Print(err)
				q.PutBack(m)
				return
			}
			q.Remove(m)
		})
	}
}

// What follows is shown in outgoing.md.

type message struct{ Recipient, Text string }

func sendInTurn(ctx context.Context, limits *throttler.Throttler, m message) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	d, err := limits.Wait(ctx, throttler.Rule{
		Identifier: "sms",
		Either: []throttler.Condition{
			{Name: "provider", Max: 5, TTL: time.Second},
			{Name: "recipient", Value: m.Recipient, Max: 3, TTL: time.Hour},
		},
	})
	if err != nil {
		return err // its turn would come too late, or ctx has ended
	}
	if d.Err != nil {
		log.Print(d.Err) // memcached does not answer: this process keeps the rate by itself
	}
	return send(ctx, m)
}

// Up to here.

func TestThePageOnAPIsShowsTheSendingOfThisFile(t *testing.T) {
	requireShown(t, "outgoing.md", "outgoing_mail_test.go")
}

// A line is a queue in memory. What is put back is lent again after a minute.
type line struct {
	mu        sync.Mutex // guards what follows
	waiting   []message
	lent      int
	came      chan struct{} // holds a token if waiting may have grown
	failsOnce map[string]bool
	sent      map[string]time.Duration // since the beginning
	began     time.Time
}

func newLine(waiting ...message) *line {
	return &line{waiting: waiting, came: make(chan struct{}, 1), failsOnce: map[string]bool{}, sent: map[string]time.Duration{}, began: time.Now()}
}

func (l *line) Next(ctx context.Context) (message, error) {
	for {
		l.mu.Lock()
		if len(l.waiting) > 0 {
			m := l.waiting[0]
			l.waiting = l.waiting[1:]
			l.lent++
			l.mu.Unlock()
			return m, nil
		}
		l.mu.Unlock()
		select {
		case <-l.came:
		case <-ctx.Done():
			return message{}, ctx.Err()
		}
	}
}

func (l *line) Remove(message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lent--
}

func (l *line) PutBack(m message) {
	l.Remove(m)
	time.AfterFunc(time.Minute, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.waiting = append(l.waiting, m)
		select {
		case l.came <- struct{}{}:
		default:
		}
	})
}

func (l *line) send(_ context.Context, m message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failsOnce[m.Text] {
		delete(l.failsOnce, m.Text)
		return errors.New("the provider is away")
	}
	l.sent[m.Text] = time.Since(l.began)
	return nil
}

func TestMailIsNeitherLostNorHeldUpByOneRecipient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []message
		for i := range 6 {
			all = append(all, message{"busy", fmt.Sprint("busy ", i)})
		}
		for i := range 5 {
			all = append(all, message{fmt.Sprint("recipient ", i), fmt.Sprint("other ", i)})
		}
		q := newLine(all...)
		q.failsOnce["other 4"] = true
		send = q.send
		log.SetOutput(t.Output())
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Hour)
		defer stop()

		err := sendAll(ctx, throttler.New(memstore.New()), q)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Len(t, q.sent, len(all), "everything is sent in the end")
		require.Zero(t, q.lent, "nothing is lent when sendAll has returned")
		for i := range 4 {
			require.LessOrEqual(t, q.sent[fmt.Sprint("other ", i)], 2*time.Second, "8 messages at 5 a second")
		}
		require.GreaterOrEqual(t, q.sent["other 4"], time.Minute, "after it failed")
		late := 0
		for i := range 6 {
			if q.sent[fmt.Sprint("busy ", i)] >= time.Hour {
				late++
			}
		}
		require.Equal(t, 3, late, "of one recipient's messages, at 3 an hour")
	})
}

func TestMailThatWaitsWhenTheProgramEndsGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []message
		for i := range 20 {
			all = append(all, message{fmt.Sprint("recipient ", i), fmt.Sprint("message ", i)})
		}
		q := newLine(all...)
		send = q.send
		log.SetOutput(t.Output())
		ctx, stop := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer stop()
		require.ErrorIs(t, sendAll(ctx, throttler.New(memstore.New()), q), context.DeadlineExceeded)
		require.Len(t, q.sent, 10)
		require.Zero(t, q.lent)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, q.waiting, 10, "the others are in the queue again")
	})
}

// send is what the page takes from the reader's program.
var send func(ctx context.Context, m message) error
