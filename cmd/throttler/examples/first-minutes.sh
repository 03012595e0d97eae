#!/usr/bin/env bash
# An operator's first five minutes: from nothing to a limited nginx, a metric on a graph
# and a ban lifted. docs/service.md tells the same steps.
#
# Usage: first-minutes.sh [REPOSITORY]     as root: it uses a network of its own
set -euo pipefail
if [ "${INSIDE:-}" = '' ]; then
  INSIDE=yes exec unshare --net "$0" "$@"
fi
repository=$(realpath "${1:-$(dirname "$0")/../../..}")
work=$(mktemp -d)
chmod 755 "$work"
trap 'set +e; exec 2>/dev/null; kill $(jobs -p); kill -9 ${memcached:-}; wait; rm -rf "$work"' EXIT
ip link set lo up
begin=$(date +%s%N)

# step says what is done, and when.
step() { printf '%5d ms  %s\n' "$((($(date +%s%N) - begin) / 1000000))" "$*"; }

# await runs a command until it succeeds.
await() {
  for _ in $(seq 1000); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.05
  done
  echo "never: $*" >&2
  exit 1
}

status() { curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8080/; }

step "build the command"
cd "$repository"
go build -o "$work/throttler" ./cmd/throttler
cd "$work"

step "start memcached, and an application"
memcached -u nobody -l 127.0.0.1 -p 11211 &
memcached=$! # 1.6.18 does not always end by itself
mkdir site && echo page >site/index.html
python3 -m http.server -d site --bind 127.0.0.1 8000 >/dev/null 2>&1 &
await curl -s -o /dev/null http://127.0.0.1:8000/

step "write a rule file, and check it"
cat >rules.yaml <<'RULES'
servers: [127.0.0.1:11211]
rules:
  - name: pages
    either: [{name: address, value: "{address}", max: 5, per: 1m}]
    lockout: 1h
RULES
./throttler check rules.yaml

step "start the service"
./throttler serve -rules rules.yaml 2>throttler.log &
await ./throttler health

step "start nginx with the configuration of docs/proxies.md"
awk '/^```/ { inside = $0 == "```nginx"; next } inside' "$repository/docs/proxies.md" >nginx.site
printf 'daemon off; pid nginx.pid; error_log stderr error; events {} http { access_log off; include %s; }' "$work/nginx.site" >nginx.conf
nginx -p "$work" -c "$work/nginx.conf" -e stderr &

await curl -s -o /dev/null http://127.0.0.1:8080/

step "ask until the limit is reached"
until [ "$(status)" = 429 ]; do :; done

step "start Prometheus, and look at the metric"
cat >prometheus.yml <<'PROMETHEUS'
scrape_configs:
  - job_name: throttler
    scrape_interval: 1s
    static_configs: [{targets: ["127.0.0.1:4181"]}]
PROMETHEUS
prometheus --config.file=prometheus.yml --storage.tsdb.path=data --web.listen-address=127.0.0.1:9090 2>prometheus.log &
blocked() {
  curl -sG http://127.0.0.1:9090/api/v1/query_range --data-urlencode 'query=throttler_decisions_total{throttler_result="blocked"}' \
    -d "start=$(($(date +%s) - 60))" -d "end=$(date +%s)" -d step=1 | grep -o '"values":\[\[[^]]*\]'
}
await blocked
blocked

step "look who is banned, and lift it"
./throttler list -bans -rules rules.yaml
[ "$(status)" = 429 ]
./throttler lift pages address=127.0.0.1 -rules rules.yaml
[ "$(status)" = 200 ]
step "done: the request passes again"
