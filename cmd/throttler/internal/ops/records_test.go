package ops_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/cmd/throttler/internal/ops"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAStateShowsOnlyWhatStillCounts(t *testing.T) {
	now := time.Now()
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }

	ended := ops.NewState(throttler.Record{BannedUntil: at(0), EmptyAt: at(-1), Expiries: []time.Time{at(-2), at(0)}}, now)
	assert.True(t, ended.Empty(), "what ends now counts no more")

	s := ops.NewState(throttler.Record{BannedUntil: at(1), EmptyAt: at(2), Expiries: []time.Time{at(-1), at(3), at(4), at(5)}}, now)
	assert.False(t, s.Empty())
	assert.Equal(t, at(1), *s.BannedUntil)
	assert.Equal(t, at(2), *s.EmptyAt)
	assert.Equal(t, 3, s.Hits)
	assert.Equal(t, at(3), *s.FirstEnds)
	assert.Equal(t, at(5), *s.LastEnds)
}

func TestTargetsAreConditionsAndValues(t *testing.T) {
	targets, err := ops.ParseTargets([]string{"ip=203.0.113.7", "name=a=b", "empty="})
	require.NoError(t, err)
	assert.Equal(t, []ops.Target{{"ip", "203.0.113.7"}, {"name", "a=b"}, {"empty", ""}}, targets)
	for _, args := range [][]string{nil, {"ip"}, {"=x"}, {"ip=1", ""}} {
		_, err := ops.ParseTargets(args)
		assert.Error(t, err, "%q", args)
	}
}

// A known place, and what a siege counts, block nobody, though their records may be full.
func TestBookkeepingIsListedOnlyByItsName(t *testing.T) {
	for identifier, wants := range map[string]map[string]bool{
		"":                      {"site#ip#a": true, "throttler-login#name#a": true, "throttler-login-known#name+address#a": false, "throttler-login-siege#failed#": false, "hello": false},
		"throttler-login-known": {"site#ip#a": false, "throttler-login-known#name+address#a": true},
	} {
		for key, want := range wants {
			require.Equal(t, want, ops.Wants(identifier, key), "%q of %q", key, identifier)
		}
	}
}

// A condition that the Guard gets later must be one that operators may look at, ban and lift.
func TestTheConditionsOfLoginsAreThoseOfTheGuard(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../../../login/conditions.go", nil, 0)
	require.NoError(t, err)
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		if of, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(of.Names[0].Name, "by") {
			name, err := strconv.Unquote(of.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			names = append(names, name)
		}
		return true
	})
	assert.ElementsMatch(t, names, ops.LoginConditions)

	o := &ops.Operator{Servers: []string{"127.0.0.1:1"}, Out: io.Discard}
	for _, condition := range []string{"adress", "ip", "-variant", "name-variants"} {
		err := o.Look(t.Context(), "throttler-login", []ops.Target{{Condition: condition, Value: "alice"}})
		require.ErrorAs(t, err, new(ops.UsageError))
		assert.ErrorContains(t, err, strconv.Quote(condition)+": it has name+address, ")
	}
}
