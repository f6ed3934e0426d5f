#!/usr/bin/env bash
# Prometheus scrapes all programs of the demo, and PromQL has figures of each server. Skipped if there is no Prometheus.
set -uo pipefail

export TMPDIR=$TEST_TMPDIR
output=$(timeout 250 tools/dev/observed.py --server=examples/kv/kv_server --client=examples/observed/kv_load \
  --seconds=5 2> "$TEST_TMPDIR/log")
result=$?
if [ "$result" -eq 77 ]; then
  echo "skipped: $(tail -1 "$TEST_TMPDIR/log")"
  exit 0
fi

fail() {
  printf '%s (exit %s)\noutput:\n%s\nlog:\n%s\n' "$1" "$result" "$output" "$(cat "$TEST_TMPDIR/log")"
  exit 1
}

# A busy machine may slow another server down more than the stops do their own: the status is 3 then.
case $result in 0 | 3) ;; *) fail "the demo failed" ;; esac
figure='[0-9][0-9,.]*'
for row in "served calls/s" "p99 in the server, ms" "p99 that the client waits, ms" "longest scrape, ms"; do
  grep -Eq "^$row +$figure +$figure +$figure\$" <<<"$output" || fail "no figures of '$row'"
done
grep -Eq "^PromQL names server-[123] as the slow one. server-[123] was stopped [1-9][0-9]* times.\$" <<<"$output" ||
  fail "no server is named"
if compgen -G "$TEST_TMPDIR/verbena-observed.*" > /dev/null; then fail "a directory is left"; fi
