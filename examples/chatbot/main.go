// Chatbot is an oracle that answers at most 2 questions a minute for each user,
// and 10 in 2 minutes for all users together.
//
//	go run ./examples/chatbot [-minute 2s]
//	go run ./examples/chatbot -stdin [-minute 1m]
//
// Without -stdin it plays a conversation that shows both limits. A minute takes
// 2 seconds there, and the times printed are those of the conversation. With
// -stdin it answers lines "user: question" from standard input until they end.
// The exit status is 0, or 1 if it cannot read or write, or 2 if the flags are
// wrong.
//
// Watch frank in the conversation. The oracle has answered the others too
// often, and turns frank away twice. That does not count towards frank's own
// limit: as soon as the oracle answers again, frank has 2 questions.
// [throttler.Rule.CountAuthorizedOnly] makes it so.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/examples/internal/startup"
	"github.com/adaptivethrottler/throttler/memstore"
)

func main() {
	os.Exit(run(context.Background(), os.Stdin, os.Stdout, os.Stderr, os.Args[1:]...))
}

// run runs the program and returns its exit status, 1 also if ctx ends.
func run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args ...string) int {
	flags := flag.NewFlagSet("chatbot", flag.ContinueOnError)
	talk := flags.Bool("stdin", false, `talk with standard input, in lines "user: question"`)
	minute := flags.Duration("minute", 0, "the length of a minute (default 1m with -stdin, 2s without)")
	err := startup.Parse(flags, args, stderr)
	if err == nil && (*minute < 0 || *minute > 0 && *minute < 60*time.Millisecond) {
		err = fmt.Errorf("-minute is %v, want 60ms or more", *minute)
	}
	if err != nil {
		return startup.Misused("chatbot", err, stderr)
	}
	b := bot{throttler: throttler.New(memstore.New()), start: time.Now(), out: stdout}
	if *talk {
		b.second = cmp.Or(*minute, time.Minute) / 60
		err = b.talk(ctx, stdin)
	} else {
		b.second = cmp.Or(*minute, 2*time.Second) / 60
		err = b.play(ctx)
	}
	return startup.Ended("chatbot", err, stderr)
}

// A bot answers questions, on out.
type bot struct {
	throttler *throttler.Throttler
	start     time.Time
	second    time.Duration // the length of a second
	out       io.Writer
}

func (b *bot) rule(user string) throttler.Rule {
	return throttler.Rule{
		Identifier: "oracle",
		Either: []throttler.Condition{
			{Name: "user", Value: user, Max: 2, TTL: 60 * b.second, Message: "you have asked enough"},
			{Name: "everybody", Max: 10, TTL: 120 * b.second, Message: "all of you have asked enough"},
		},
		CountAuthorizedOnly: true,
	}
}

// reply returns the answer to a question.
func (b *bot) reply(ctx context.Context, user, question string) (string, error) {
	d, err := b.throttler.Authorize(ctx, b.rule(user))
	if err := cmp.Or(err, ctx.Err()); err != nil {
		return "", err
	}
	if d.Status == throttler.Blocked {
		wait := (d.RetryAfter + b.second*9/10) / b.second // rounded up, but for a tenth
		return fmt.Sprintf("%s, ask again in %d s", strings.Join(d.Messages, " and "), wait), nil
	}
	return oracle(question), nil
}

// oracle answers a question, always the same way.
func oracle(question string) string {
	hash := fnv.New32a()
	io.WriteString(hash, question)
	answers := []string{"yes", "no", "not today", "only if it rains", "ask your mother", "the signs are good"}
	return answers[hash.Sum32()%uint32(len(answers))]
}

// conversation lists the questions of users, with their seconds.
var conversation = []struct {
	at             int
	user, question string
}{
	{0, "alice", "will it rain?"},
	{5, "alice", "will it snow?"},
	{9, "alice", "will it hail?"},
	{12, "bob", "shall I sell?"},
	{14, "bob", "shall I buy?"},
	{20, "carol", "is he the one?"},
	{22, "carol", "is she the one?"},
	{30, "dave", "tea?"},
	{31, "dave", "coffee?"},
	{40, "erin", "is it Friday?"},
	{42, "erin", "is it Friday yet?"},
	{50, "frank", "am I too late?"},
	{55, "frank", "and now?"},
	{62, "alice", "will it hail?"},
	{121, "frank", "and now?"},
	{126, "frank", "shall I stay?"},
	{127, "frank", "shall I go?"},
}

// play plays the conversation.
func (b *bot) play(ctx context.Context) error {
	for _, c := range conversation {
		select {
		case <-time.After(time.Until(b.start.Add(time.Duration(c.at) * b.second))):
		case <-ctx.Done():
			return ctx.Err()
		}
		reply, err := b.reply(ctx, c.user, c.question)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(b.out, "%d:%02d %s: %s\n     bot: %s\n", c.at/60, c.at%60, c.user, c.question, reply)
		if err != nil {
			return err
		}
	}
	return nil
}

// talk answers the lines of in.
func (b *bot) talk(ctx context.Context, in io.Reader) error {
	input := bufio.NewReader(in)
	for {
		line, readErr := input.ReadString('\n')
		if line = strings.TrimSpace(line); line != "" {
			reply := "say who you are, as in alice: will it rain?"
			if user, question, ok := strings.Cut(line, ":"); ok {
				var err error
				if reply, err = b.reply(ctx, strings.TrimSpace(user), strings.TrimSpace(question)); err != nil {
					return err
				}
			}
			if _, err := fmt.Fprintf(b.out, "bot: %s\n", reply); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(readErr, io.EOF):
			return nil
		case readErr != nil:
			return readErr
		}
	}
}
