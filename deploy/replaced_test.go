package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// replacing runs the service with the rule file of the cluster, whose names are of two memcached.
// It bans 20 values, and has the first memcached end and come back empty at another address.
const replacing = `
PATH=$(dirname "$COMMAND"):$PATH
mount --bind "$ROOT/hosts" /etc/hosts
pod() { memcached -u nobody -l "$1" >/dev/null 2>&1 & }
name() { echo "$1 memcached-0.memcached
127.0.1.2 memcached-1.memcached" >/etc/hosts; }
await() { for _ in $(seq 600); do if "$@" >/dev/null 2>&1; then return; fi; sleep 0.1; done; echo "never: $*"; exit 1; }
banned() {
  local n=0 i
  for i in $(seq 20); do
    [ "$(curl -s -o /dev/null -w '%{http_code}' -H "X-Forwarded-For: 203.0.113.$i" http://127.0.0.1:4180/auth)" = 200 ] || n=$((n + 1))
  done
  echo "$n"
}
name 127.0.1.1; pod 127.0.1.1; first=$!; pod 127.0.1.2
cd "$ROOT"
throttler serve -rules rules.yaml 2>log &
await throttler health
for i in $(seq 20); do throttler ban pages "address=203.0.113.$i" 1h -rules rules.yaml >/dev/null; done
echo "before: $(banned)"
kill -9 $first
banned >/dev/null
grep -q 'a server is down.*memcached-0' log
name 127.0.1.3; pod 127.0.1.3
answers() { ! curl -s http://127.0.0.1:4181/readyz | grep 'does not answer'; }
await answers
echo "of memcached-1: $(throttler list -bans -json -rules rules.yaml | grep -c '"server": "memcached-1')"
echo "after: $(banned)"
await grep 'a server has forgotten records.*memcached-0' log
`

// What docs/production.md says of a pod of memcached that is replaced.
func TestAPodOfMemcachedThatIsReplacedIsFoundByItsName(t *testing.T) {
	skiptest.Slow(t) // its loss is noticed within 15 s
	root := t.TempDir()
	for name, text := range map[string]string{"rules.yaml": read(t, "kubernetes/rules.yaml"), "hosts": ""} {
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	output := apart(t, root, replacing)
	said := strings.Split(strings.TrimSpace(output), "\n")
	require.Len(t, said, 3, output)
	assert.Equal(t, "before: 20", said[0])
	left := strings.TrimPrefix(said[1], "of memcached-1: ")
	assert.NotContains(t, []string{"0", "20"}, left, "each has some")
	assert.Equal(t, "after: "+left, said[2], "the bans of the other pod hold, and no others")
}
