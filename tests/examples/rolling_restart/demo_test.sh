#!/usr/bin/env bash
# Each server is restarted once under load, and no call fails.
set -euo pipefail

output=$(timeout 50 examples/rolling_restart/rolling_restart 2> "$TEST_TMPDIR/log")
expected="server 1 of 3 restarted
server 2 of 3 restarted
server 3 of 3 restarted
calls: answered by 6 processes, failed 0"
if [ "$output" != "$expected" ]; then
  printf 'expected:\n%s\ngot:\n%s\nlog:\n%s\n' "$expected" "$output" "$(cat "$TEST_TMPDIR/log")"
  exit 1
fi
