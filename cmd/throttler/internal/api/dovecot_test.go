package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/stretchr/testify/assert"
)

// allow asks as Dovecot does before it looks at a password.
func (r *replica) allow(t *testing.T, name, address string) string {
	t.Helper()
	return r.policy(t, "allow", fmt.Sprintf(`{"login": %q, "remote": %q, "pwhash": "07a3", "device_id": "", "protocol": "imap"}`, name, address))
}

// report reports as Dovecot does.
func (r *replica) report(t *testing.T, name, address, result string) {
	t.Helper()
	assert.Equal(t, `{"status":0,"msg":""}`, r.policy(t, "report", fmt.Sprintf(`{"login": %q, "remote": %q, %s}`, name, address, result)))
}

func (r *replica) policy(t *testing.T, command, body string) string {
	t.Helper()
	w := r.send(t.Context(), "/v1/dovecot?command="+command, body)
	assert.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
	return strings.TrimSpace(w.Body.String())
}

const (
	allowed  = `{"status":0,"msg":""}`
	rejected = `{"status":-1,"msg":"Too many attempts. Please try again later."}`
	failed   = `"success": false, "policy_reject": false`
)

func TestDovecotIsAllowedFiveWrongPasswords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, memstore.New(), rules)
		for range 20 { // right ones cost nothing
			assert.Equal(t, allowed, r.allow(t, "alice", "203.0.113.7"))
			r.report(t, "alice", "203.0.113.7", `"success": true, "policy_reject": false`)
		}
		for range 5 {
			assert.Equal(t, allowed, r.allow(t, "alice", "203.0.113.7"))
			r.report(t, "alice", "203.0.113.7", failed)
		}
		for range 3 {
			assert.Equal(t, rejected, r.allow(t, "alice", "203.0.113.7"))
			r.report(t, "alice", "203.0.113.7", `"success": false, "policy_reject": true`)
		}
		assert.Equal(t, allowed, r.allow(t, "alice", "203.0.113.8"))
		r.report(t, "alice", "203.0.113.8", `"success": false, "policy_reject": true`) // of another one
		r.report(t, "alice", "203.0.113.8", `"success": true, "policy_reject": false`)
		for range 5 {
			assert.Equal(t, allowed, r.allow(t, "alice", "203.0.113.8"), "none of these is used up")
		}
		time.Sleep(9 * time.Minute)
		assert.Equal(t, rejected, r.allow(t, "alice", "203.0.113.7"), "banned for 10 minutes")
		time.Sleep(time.Minute)
		assert.Equal(t, allowed, r.allow(t, "alice", "203.0.113.7"))
	})
}

func TestGuessesThatDovecotNeverReportsOnCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, memstore.New(), rules)
		for range 5 {
			assert.Equal(t, allowed, r.allow(t, "alice", "203.0.113.7"))
		}
		assert.Equal(t, rejected, r.allow(t, "alice", "203.0.113.7"))
		time.Sleep(40 * time.Second)
		assert.Equal(t, rejected, r.allow(t, "alice", "203.0.113.7"), "a ban begins")
		time.Sleep(5 * time.Minute)
		assert.Equal(t, rejected, r.allow(t, "alice", "203.0.113.7"))
		assert.Equal(t, allowed, r.allow(t, "bob", "203.0.113.8"), "which forgets the old ones")
		r.report(t, "alice", "203.0.113.7", `"success": true`)
		assert.Equal(t, rejected, r.allow(t, "alice", "203.0.113.7"), "a report comes too late")
	})
}

func TestReportsOfOneNameAndAddressAreAlike(t *testing.T) {
	r := newReplica(t, memstore.New(), rules)
	for range 3 {
		assert.Equal(t, allowed, r.allow(t, "alice", "203.0.113.7"))
	}
	r.report(t, "alice", "203.0.113.7", failed)
	r.report(t, "alice", "203.0.113.7", `"success": false, "fail_type": "internal"`)
	r.report(t, "alice", "203.0.113.7", failed)
	r.report(t, "alice", "203.0.113.7", failed) // one too many
	for range 3 {
		assert.Equal(t, allowed, r.allow(t, "alice", "203.0.113.7"), "two have failed")
	}
	assert.Equal(t, rejected, r.allow(t, "alice", "203.0.113.7"))
}

func TestAMasterUsersPasswordCountsForBothNames(t *testing.T) {
	r := newReplica(t, memstore.New(), rules)
	ask := func(command, account, more string, i int) string {
		return r.policy(t, command, fmt.Sprintf(`{"login": %q, "remote": "203.0.113.%d", %s}`, account, i, more))
	}
	const begun, wrong, right = `"user": "root", "master": ""`, `"user": "root", "master": "", ` + failed, `"user": "alice", "master": "root", "success": true`
	for i := range 60 {
		want := map[bool]string{true: allowed, false: rejected}[i < 24]
		account := fmt.Sprint("account", i)
		assert.Equal(t, want, ask("allow", account, begun, i), "of any account")
		if i < 24 {
			assert.Equal(t, allowed, ask("report", account, wrong, i))
			assert.Equal(t, allowed, ask("allow", "alice", `"user": "alice", "master": ""`, 100), "cancelled below")
			assert.Equal(t, allowed, ask("report", "alice", `"user": "alice", "fail_type": "internal"`, 100))
		}
	}
	assert.Equal(t, rejected, ask("allow", "root", `"user": "root"`, 70), "as its own account too")

	r = newReplica(t, memstore.New(), rules)
	for i := range 24 {
		assert.Equal(t, allowed, ask("allow", "alice", fmt.Sprintf(`"user": "root%d"`, i), i), "any master user of one account")
	}
	assert.Equal(t, rejected, ask("allow", "alice", `"user": "other"`, 70))

	r = newReplica(t, memstore.New(), rules)
	for i := range 40 {
		assert.Equal(t, allowed, ask("allow", "alice", begun, 1))
		assert.Equal(t, allowed, ask("report", "alice", right, 1), "right ones cost nothing: %d", i)
	}
	for range 5 { // guesses at the master user beside one's own right password
		assert.Equal(t, allowed, ask("allow", "mallory", begun, 2))
		assert.Equal(t, allowed, ask("allow", "mallory", `"user": "mallory"`, 2))
		assert.Equal(t, allowed, ask("report", "mallory", `"user": "mallory", "success": true`, 2))
		assert.Equal(t, allowed, ask("report", "mallory", wrong, 2))
	}
	assert.Equal(t, rejected, ask("allow", "mallory", begun, 2))
	assert.Equal(t, allowed, ask("allow", "mallory", `"user": "mallory"`, 3))
	assert.Equal(t, allowed, ask("report", "mallory", `"user": "Mallory the first", "success": true`, 3), "Dovecot may call it otherwise then")
}

func TestWhatDovecotMaySend(t *testing.T) {
	r := newReplica(t, memstore.New(), rules)
	for range 30 {
		assert.Equal(t, allowed, r.allow(t, "alice", ""), "a local program")
	}
	assert.Equal(t, `{"status":-1,"msg":"Wrong name or password."}`, r.allow(t, strings.Repeat("a", 1025), "203.0.113.7"))
	assert.Equal(t, allowed, r.allow(t, "alice", "::ffff:203.0.113.7"))
	for _, c := range [][2]string{{"allow", `{"login": "a", "remote": "x"}`}, {"allow", `{`}, {"other", `{}`}, {"", `{}`}} {
		assert.Equal(t, http.StatusBadRequest, r.send(t.Context(), "/v1/dovecot?command="+c[0], c[1]).Code, "%s", c)
	}
	assert.Equal(t, http.StatusUnauthorized, r.send(t.Context(), "/v1/dovecot?command=allow", `{}`, "Authorization", "Bearer x").Code)
}

func TestAWebPageCannotAskAsDovecotDoes(t *testing.T) {
	r := newReplica(t, memstore.New(), rules)
	const body = `{"login": "alice", "remote": "203.0.113.7"}`
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded"} {
		for range 6 {
			w := r.send(t.Context(), "/v1/dovecot?command=allow", body, "Content-Type", kind)
			assert.Equal(t, http.StatusUnsupportedMediaType, w.Code, kind)
		}
	}
	w := r.send(t.Context(), "/v1/dovecot?command=allow", body, "Content-Type", "application/json; charset=utf-8")
	assert.Equal(t, allowed, strings.TrimSpace(w.Body.String()), "nothing was counted")
}

func TestDovecotIsRefusedWhileTheBackendFailsIfTheFileSaysSo(t *testing.T) {
	for more, want := range map[string]string{"": allowed, "failure: closed\n": `{"status":-1,"msg":"Please try again later."}`} {
		client := &torn{Client: memstore.New(), part: "#address#"}
		client.down.Store(true)
		assert.Equal(t, want, newReplica(t, client, rules+more).allow(t, "alice", "203.0.113.7"))
	}
}
