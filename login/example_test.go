package login_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/login"
	"github.com/adaptivethrottler/throttler/memstore"
)

// A user mistypes a password six times.
func Example() {
	limits := throttler.New(memstore.New())
	guard := login.New(limits)

	logIn := func(name, password string, addr netip.Addr) string {
		ctx := context.Background()
		result, d, err := guard.Try(ctx, name, addr, func(context.Context) (bool, error) {
			return password == "correct horse", nil
		})
		switch {
		case err != nil:
			log.Fatal(err)
		case result == login.Refused:
			return fmt.Sprint(d.Messages[0], " ", d.RetryAfter.Round(time.Second))
		case result == login.Failed:
			return "Wrong name or password."
		}
		return "Welcome!"
	}

	home := netip.MustParseAddr("203.0.113.7")
	for range 6 {
		fmt.Println(logIn("alice", "correct house", home))
	}
	fmt.Println(logIn("alice", "correct horse", netip.MustParseAddr("198.51.100.9")))

	// Output:
	// Wrong name or password.
	// Wrong name or password.
	// Wrong name or password.
	// Wrong name or password.
	// Wrong name or password.
	// Too many attempts. Please try again later. 10m0s
	// Welcome!
}

// Ten wrong codes in an hour, and no eleventh is looked at.
func ExampleNewCodes() {
	ctx := context.Background()
	codes := login.NewCodes(throttler.New(memstore.New()))

	enter := func(account, code string, from netip.Addr) string {
		attempt, err := codes.Begin(ctx, account, from) // after the password was right
		if err != nil {
			log.Fatal(err)
		}
		if attempt.Decision.Status == throttler.Blocked { // do not look at the code
			return "Too many codes were tried."
		}
		if code != "271828" {
			if err := attempt.Fail(ctx); err != nil {
				log.Print(err) // it counts all the same
			}
			return "Wrong code."
		}
		if err := attempt.Succeed(ctx); err != nil {
			log.Print(err) // the hits stay until they expire
		}
		return "Welcome!"
	}

	for i := range 10 { // from ten addresses
		enter("account 1", "000000", netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	fmt.Println(enter("account 1", "271828", netip.MustParseAddr("203.0.113.7")))
	fmt.Println(enter("account 2", "271828", netip.MustParseAddr("203.0.113.7")))

	// Output:
	// Too many codes were tried.
	// Welcome!
}

// The owner of an account under attack gets in from a new address by a link
// sent to them.
func ExampleGuard_Recognize() {
	ctx := context.Background()
	guard := login.New(throttler.New(memstore.New()))
	for i := range 100 {
		if guess, err := guard.Begin(ctx, "alice", netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})); err == nil {
			guess.Fail(ctx)
		}
	}

	hotel := netip.MustParseAddr("203.0.113.7")
	attempt, _ := guard.Begin(ctx, "alice", hotel)
	fmt.Println(attempt.Decision.Status)

	// The handler of the link: it was sent to the account's address.
	if err := guard.Recognize(ctx, "alice", hotel, ""); err != nil {
		log.Fatal(err)
	}
	attempt, _ = guard.Begin(ctx, "alice", hotel)
	fmt.Println(attempt.Decision.Status)

	// Output:
	// blocked
	// authorized
}
