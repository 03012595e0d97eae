#!/usr/bin/env bash
# Runs the configurations of the manual as they stand in its pages.
#
# Usage: pages.sh THROTTLER DOCS     as root: it uses a network of its own
set -euo pipefail
if [ "${INSIDE:-}" = '' ]; then
  INSIDE=yes exec unshare --net --mount "$0" "$@"
fi
throttler=$1 docs=$(realpath "$2") here=$(realpath "$(dirname "$0")")
work=$(mktemp -d)
chmod 755 "$work"
cd "$work"
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT
ip link set lo up
mkdir -p haproxy caddy && cp "$here/../proxies/throttler.lua" haproxy/
mkdir -p /etc/haproxy && mount --bind haproxy /etc/haproxy

# block prints the fenced blocks of a page that contain a text.
block() {
  awk -v want="$2" '
    /^```/ { if (inside && index(text, want)) printf "%s", text; inside = !inside; text = ""; next }
    inside { text = text $0 "\n" }' "$docs/$1.md"
}

# await waits until a port of this machine answers.
await() {
  for _ in $(seq 500); do
    if (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then return; fi
    sleep 0.02
  done
  echo "nothing listens at $1" >&2
  exit 1
}

# expect compares the statuses of requests for a path with those that are wanted.
expect() {
  local what=$1 path=$2 statuses='' _
  shift 2
  for _ in "$@"; do statuses+=" $(curl -s -o /dev/null -w '%{http_code}' --interface "127.0.0.$client" "http://127.0.0.1:8080$path")"; done
  [ "$statuses" = " $*" ] || { echo "$what:$statuses, want $*" >&2; exit 1; }
  echo "$what:$statuses"
}

# stopped ends a program and waits for it.
stopped() {
  kill "$1"
  wait "$1" 2>/dev/null || true
}

# A rule file is told by the first name in it.
for page in rules proxies service; do
  for n in $(seq "$(($(grep -c '^```' "$docs/$page.md") / 2))"); do
    awk -v want="$n" '/^```/ { if (inside) inside = 0; else inside = ++n; next } inside == want' "$docs/$page.md" >rules.yaml
    if grep -qE '^(rules|envoy):' rules.yaml; then
      "$throttler" check -offline rules.yaml | tail -1 | sed "s/^/$page.md, $(grep -oEm1 '(name|domain): [a-z]+' rules.yaml): /"
    fi
  done
done

mkdir site && echo page >site/index.html
python3 -m http.server -d site --bind 127.0.0.1 8000 >/dev/null 2>&1 &
cat >rules.yaml <<'RULES'
rules:
  - name: pages
    either: [{name: address, value: "{address}", max: 3, per: 1h, public: true}]
RULES
"$throttler" serve -rules rules.yaml -drain 0s 2>throttler.log &
service=$!
await 4180
await 8000

client=2
block proxies auth_request_set >nginx.site
printf 'daemon off; pid nginx.pid; error_log stderr error; events {} http { access_log off; include %s; }' "$work/nginx.site" >nginx.conf
nginx -p "$work" -c "$work/nginx.conf" -e stderr &
proxy=$!
await 8080
expect nginx / 200 200 200 429
stopped $proxy

client=3
block proxies forward_auth >Caddyfile
HOME=$work XDG_CONFIG_HOME=$work/caddy XDG_DATA_HOME=$work/caddy caddy run --config Caddyfile --adapter caddyfile 2>caddy.log &
proxy=$!
await 8080
expect caddy / 200 200 200 429
stopped $proxy

client=4
block proxies lua-load >haproxy.cfg
haproxy -db -f haproxy.cfg 2>haproxy.log &
proxy=$!
await 8080
expect haproxy / 200 200 200 429
stopped $proxy
stopped $service

block service 'name: pages' >rules.yaml
awk '/^```/ { inside = $0 == "```sh"; next } inside' "$docs/service.md" |
  sed 's/^sleep 1 .*/for port in 11211 4180 4183; do until (: <"\/dev\/tcp\/127.0.0.1\/$port") 2>\&-; do sleep 0.02; done; done/' >ask.sh
echo 'kill -9 $(jobs -p)' >>ask.sh # memcached 1.6.18 does not always end by itself
mkdir bin && ln -s "$throttler" bin/throttler
PATH=$work/bin:$PATH THROTTLER_DRAIN=0s bash -ex ask.sh 2>service.log | sed 's/^/service.md: /' || { cat service.log >&2; exit 1; }
