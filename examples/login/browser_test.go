package main

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/internal/skiptest"
)

var screenshots = flag.String("screenshots", "", "write pictures of the pages to this `directory`")

// chromium returns the path of a browser, or skips the test, or fails it where
// THROTTLER_REQUIRE_CHROMIUM is 1.
func chromium(t *testing.T) string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome-headless-shell"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	const missing = "there is no browser to test with: apt-get install chromium"
	if os.Getenv("THROTTLER_REQUIRE_CHROMIUM") == "1" {
		t.Fatal(missing)
	}
	skiptest.Skip(t, missing)
	return ""
}

// A browser is one with a profile of its own, which ends with the test.
type browser struct {
	t          *testing.T
	town       *town
	ctx        context.Context
	scriptless bool
}

// browser starts a browser for a town, at this address.
func (town *town) browser(addr string) *browser {
	t := town.t
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium(t)),
		chromedp.WindowSize(800, 720),
		chromedp.Flag("hide-scrollbars", true),
		chromedp.Flag("lang", "en"),
		chromedp.WSURLReadTimeout(2*time.Minute),
	)
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{t: t, town: town, ctx: ctx}
	b.do(network.Enable(), network.SetExtraHTTPHeaders(network.Headers{"X-Forwarded-For": addr}))
	return b
}

func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Run(b.ctx, actions...))
}

// logIn types name and password into the form and sends it by the Enter key.
func (b *browser) logIn(name, password string) {
	b.t.Helper()
	b.do(chromedp.Clear("#name", chromedp.ByQuery), chromedp.SendKeys("#name", name, chromedp.ByQuery))
	b.sends(chromedp.SendKeys("#password", password+kb.Enter, chromedp.ByQuery))
}

// drawn is done when a page has been drawn. Keys that are sent to it before go nowhere.
const drawn = `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`

// sends does what brings up another page, and waits until that is drawn.
func (b *browser) sends(action chromedp.Action) {
	b.t.Helper()
	_, err := chromedp.RunResponse(b.ctx, action)
	require.NoError(b.t, err)
	b.do(chromedp.WaitReady("body", chromedp.ByQuery))
	if b.scriptless {
		var picture []byte
		b.do(chromedp.CaptureScreenshot(&picture)) // draws it
		return
	}
	b.do(chromedp.Evaluate(drawn, nil, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
}

func (b *browser) opens(url string) { b.t.Helper(); b.sends(chromedp.Navigate(url)) }

func (b *browser) text(selector string) (text string) {
	b.t.Helper()
	b.do(chromedp.Text(selector, &text, chromedp.ByQuery))
	return text
}

func (b *browser) eval(expression string) (result any) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, &result))
	return result
}

// focuses waits until the element with an id has the focus. A browser gives it to the one
// that a page names when it draws next.
func (b *browser) focuses(id string) {
	b.t.Helper()
	b.do(chromedp.Poll(`document.activeElement.id === "`+id+`"`, nil, chromedp.WithPollingTimeout(time.Minute)))
}

// picture saves what the window shows, if pictures are wanted.
func (b *browser) picture(name, selector string) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	var png []byte
	b.do(chromedp.Sleep(300*time.Millisecond), chromedp.Screenshot(selector, &png, chromedp.ByQuery))
	require.NoError(b.t, os.WriteFile(filepath.Join(*screenshots, name), png, 0o644))
}

// seconds returns the countdown of the page.
func (b *browser) seconds() int {
	b.t.Helper()
	minutes, seconds, ok := strings.Cut(b.text("#countdown"), ":")
	require.True(b.t, ok)
	m, err := strconv.Atoi(minutes)
	require.NoError(b.t, err)
	s, err := strconv.Atoi(seconds)
	require.NoError(b.t, err)
	return 60*m + s
}

// What a person sees: wrong passwords until the form is closed, the countdown,
// another user who gets in, the operator, and the way in.
func TestInABrowser(t *testing.T) {
	town := openTown(t)
	alice := town.browser("203.0.113.7")

	alice.opens(town.site.URL)
	alice.focuses("name")
	alice.picture("login.png", "body")
	for range 5 {
		alice.logIn("alice", "wrong password")
		require.Contains(t, alice.text("[role=alert]"), "The name or the password is wrong.")
	}
	require.Equal(t, "alice", alice.eval(`document.getElementById("name").value`))
	require.Equal(t, "", alice.eval(`document.getElementById("password").value`))
	alice.focuses("password")

	begun := time.Now()
	alice.logIn("alice", "wrong password")
	require.Contains(t, alice.text("[role=alert]"), "Too many attempts.")
	require.Equal(t, true, alice.eval(`document.getElementById("submit").disabled`))
	require.Equal(t, "alice", alice.eval(`document.getElementById("name").value`))
	before := alice.seconds()
	require.LessOrEqual(t, before, 600)
	require.GreaterOrEqual(t, before, 599-int(time.Since(begun).Seconds()))
	alice.picture("login-blocked.png", "body")
	require.Eventually(t, func() bool { return alice.seconds() <= before-2 }, 30*time.Second, 200*time.Millisecond)

	honest := town.browser("198.51.100.9")
	honest.opens(town.site.URL)
	honest.logIn("alice", "correct horse")
	require.Equal(t, "Welcome, Alice", honest.text("h1"))

	operator := town.browser("203.0.113.1")
	operator.opens(town.operator.URL + "?refresh=off")
	require.Contains(t, operator.text("table"), "203.0.113.7#alice")
	operator.picture("login-operator.png", "body")
	operator.sends(chromedp.Click(`a[href*="lift="]`, chromedp.ByQuery))
	operator.sends(chromedp.SendKeys(`input[name=key]`, "the operator's key"+kb.Enter, chromedp.ByQuery))
	require.NotContains(t, operator.text("body"), "203.0.113.7#alice")

	alice.opens(town.site.URL)
	alice.logIn("alice", "correct horse")
	require.Equal(t, "Welcome, Alice", alice.text("h1"))
	alice.picture("home.png", "body")
	alice.sends(chromedp.Click(`form[action="/forget"] button`, chromedp.ByQuery))
	require.Contains(t, alice.text("[role=status]"), "this browser is forgotten for your name")
}

// Strangers try a name; its owner, at a new place, gets in by the mail, with a mouse
// or by keyboard alone on a phone.
func TestTheMailLetsTheOwnerInInABrowser(t *testing.T) {
	for _, width := range []int64{800, 375} {
		town := openTown(t)
		town.besiege("alice")
		alice := town.browser("198.51.100.9")
		alice.do(emulation.SetDeviceMetricsOverride(width, 720, 1, width < 500))
		fits := func() {
			t.Helper()
			require.LessOrEqual(t, alice.eval(`document.documentElement.scrollWidth`), float64(width))
		}
		alice.opens(town.site.URL)
		alice.logIn("alice", "correct horse")
		require.Contains(t, alice.text("#problem"), "If the name is yours, look into your mail")
		fits()

		alice.opens(town.mails()[0]) // from the owner's mail program
		require.Equal(t, "Was it you?", alice.text("h1"))
		alice.focuses("let-in")
		fits()
		if width < 500 {
			alice.sends(chromedp.KeyEvent(kb.Enter))
		} else {
			alice.sends(chromedp.Click("#let-in", chromedp.ByQuery))
		}
		require.Contains(t, alice.text("[role=status]"), "You are let in here.")
		fits()
		alice.logIn("alice", "correct horse")
		require.Equal(t, "Welcome, Alice", alice.text("h1"))
	}
}

// When the time is up the form opens again by itself, and says so.
func TestCountdownEnds(t *testing.T) {
	town := openTown(t)
	alice := town.browser("203.0.113.7")
	alice.opens(town.site.URL)
	for range 6 {
		alice.logIn("alice", "wrong")
	}
	alice.do(chromedp.SendKeys("#name", "x", chromedp.ByQuery))
	require.Equal(t, false, alice.eval(`document.getElementById("submit").disabled`), "another name may be tried")
	alice.do(chromedp.SendKeys("#name", kb.Backspace, chromedp.ByQuery))
	require.Equal(t, true, alice.eval(`document.getElementById("submit").disabled`))
	// Ten minutes pass for the page, which asks Date.now.
	alice.do(chromedp.Evaluate(`const now = Date.now; Date.now = () => now() + 601000`, nil))
	alice.do(chromedp.WaitEnabled("#submit", chromedp.ByQuery))
	require.Equal(t, "You can try again now.", alice.text("#again"))
	require.Equal(t, false, alice.eval(`document.getElementById("again").hidden`))
	require.Equal(t, "polite", alice.eval(`document.getElementById("again").getAttribute("aria-live")`))
	require.Equal(t, "password", alice.eval(`document.activeElement.id`))
	require.Equal(t, "Sign in – Harbour Library", alice.eval(`document.title`))
}

func TestPasswordCanBeShown(t *testing.T) {
	town := openTown(t)
	alice := town.browser("203.0.113.7")
	alice.opens(town.site.URL)
	alice.do(chromedp.SendKeys("#password", "secret", chromedp.ByQuery), chromedp.Click("#show", chromedp.ByQuery))
	require.Equal(t, "text", alice.eval(`document.getElementById("password").type`))
	require.Equal(t, "true", alice.eval(`document.getElementById("show").getAttribute("aria-pressed")`))
	alice.do(chromedp.Click("#show", chromedp.ByQuery))
	require.Equal(t, "password", alice.eval(`document.getElementById("password").type`))
}

func TestWithoutJavaScript(t *testing.T) {
	town := openTown(t)
	alice := town.browser("203.0.113.7")
	alice.do(emulation.SetScriptExecutionDisabled(true))
	alice.scriptless = true
	alice.opens(town.site.URL)
	for range 6 {
		alice.logIn("alice", "wrong")
	}
	require.Regexp(t, `^(10 minutes|9 minutes 5\d seconds)$`, alice.text("#countdown"))
	require.NotContains(t, alice.text("main"), "Show", "what needs a script is not there")
	town.visitor("").do("POST", town.operator.URL+"/forget", map[string][]string{"name": {"alice"}, "address": {"203.0.113.7"}})
	alice.logIn("alice", "correct horse")
	require.Equal(t, "Welcome, Alice", alice.text("h1"))
}

// contrasts returns the contrast of each border that tells a control from its
// ground, and of its outline while it has the focus, by the colours that the browser
// has computed, as WCAG 2.2 reckons it (1.4.11: at least 3).
const contrasts = `(() => {
	const parse = text => text.match(/[\d.]+/g).map(Number)
	const luminance = rgb => {
		const [r, g, b] = rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
		return 0.2126 * r + 0.7152 * g + 0.0722 * b
	}
	const ground = element => {
		for (; element; element = element.parentElement) {
			const [r, g, b, alpha = 1] = parse(getComputedStyle(element).backgroundColor)
			if (alpha == 1) return [r, g, b]
		}
		return [255, 255, 255]
	}
	const contrast = (a, b) => {
		const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y)
		return (high + 0.05) / (low + 0.05)
	}
	const result = {}
	for (const element of document.querySelectorAll("input:not([type=hidden]), button, a")) {
		if (!element.checkVisibility()) continue
		const name = element.tagName + " " + (element.id || element.getAttribute("aria-label") || element.textContent)
		const around = ground(element.parentElement)
		const edges = () => {
			const style = getComputedStyle(element)
			const [r, g, b, alpha = 1] = parse(style.borderTopColor)
			const edge = style.borderTopWidth != "0px" && alpha == 1 ? contrast([r, g, b], around) : 0
			return Math.max(edge, contrast(ground(element), around)) // a filled button is its own edge
		}
		if (element.tagName == "INPUT" || element.className == "quiet") result[name + ": border"] = edges()
		if (element.disabled) continue
		document.activeElement.blur()
		element.focus({focusVisible: true})
		const style = getComputedStyle(element)
		result[name + ": focus"] = style.outlineStyle == "none" ? 0 : contrast(parse(style.outlineColor).slice(0, 3), around)
	}
	return result
})()`

func TestBordersAndFocusStandOut(t *testing.T) {
	for _, scheme := range []string{"light", "dark"} {
		town := openTown(t)
		alice := town.browser("203.0.113.7")
		alice.do(emulation.SetFocusEmulationEnabled(true))
		alice.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
		standsOut := func(page string, atLeast int) {
			t.Helper()
			found, ok := alice.eval(contrasts).(map[string]any)
			require.True(t, ok)
			require.GreaterOrEqual(t, len(found), atLeast, "%s: %v", page, found)
			for what, contrast := range found {
				require.GreaterOrEqual(t, contrast, 3.0, "%s, %s: %s", scheme, page, what)
			}
		}
		alice.opens(town.site.URL)
		standsOut("login", 6)
		alice.logIn("alice", "wrong")
		standsOut("login, wrong", 6)
		for range 5 {
			alice.logIn("bob", "wrong")
		}
		alice.logIn("bob", "wrong")
		standsOut("login, blocked", 5)
		alice.logIn("alice", "correct horse")
		standsOut("home", 4)
		alice.opens(town.mails()[0])
		standsOut("the link in a mail", 1)
	}
}

// The pages fit a phone, and nothing needs a mouse.
func TestByKeyboardAloneOnAPhoneAndOnADesk(t *testing.T) {
	for _, width := range []int64{375, 1000} {
		town := openTown(t)
		alice := town.browser("203.0.113.7")
		fits := func() {
			t.Helper()
			require.LessOrEqual(t, alice.eval(`document.documentElement.scrollWidth`), float64(width))
		}
		alice.do(emulation.SetDeviceMetricsOverride(width, 800, 1, width < 500))
		alice.opens(town.site.URL)
		fits()
		alice.focuses("name")
		alice.do(chromedp.KeyEvent("alice" + kb.Tab))
		require.Equal(t, "password", alice.eval(`document.activeElement.id`))
		require.Equal(t, "3px", alice.eval(`getComputedStyle(document.activeElement).outlineWidth`))
		alice.sends(chromedp.KeyEvent("wrong" + kb.Enter))
		alice.focuses("password")
		fits()
		alice.do(chromedp.KeyEvent("correct horse" + kb.Tab))
		require.Equal(t, "show", alice.eval(`document.activeElement.id`))
		alice.do(chromedp.KeyEvent(" "))
		require.Equal(t, "correct horse", alice.eval(`document.getElementById("password").value`))
		require.Equal(t, "text", alice.eval(`document.getElementById("password").type`))
		require.Equal(t, "password", alice.eval(`document.activeElement.id`))
		alice.do(chromedp.KeyEvent(kb.Tab + kb.Tab))
		require.Equal(t, "submit", alice.eval(`document.activeElement.id`))
		alice.sends(chromedp.KeyEvent(kb.Enter))
		require.Equal(t, "Welcome, Alice", alice.text("h1"))
		fits()
		alice.do(chromedp.KeyEvent(kb.Tab))
		alice.sends(chromedp.KeyEvent(kb.Enter))
		require.Contains(t, alice.text("[role=status]"), "You have signed out")
	}
}
