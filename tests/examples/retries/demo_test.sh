#!/usr/bin/env bash
# Calls are hedged, calls that were refused are made again, and none that ran is. Times are the machine's.
set -euo pipefail

output=$(timeout 50 examples/retries/retries 2> "$TEST_TMPDIR/log")
for line in \
  'without hedging: p50 .* ms, p99 .* ms, 0 hedges for 300 calls' \
  'with hedging: p50 .* ms, p99 .* ms, [1-9][0-9]* hedges for 300 calls' \
  'refused twice before it ran: OK, 3 attempts, added 1' \
  'failed after it ran: the log is full; no further attempt: .* the outcome is executed (executed), 1 attempt, added 1'; do
  if ! grep -q "^$line\$" <<< "$output"; then
    printf 'missing:\n%s\ngot:\n%s\n' "$line" "$output"
    exit 1
  fi
done
if grep -q 'a call failed' <<< "$output"; then
  printf 'a call failed:\n%s\n' "$output"
  exit 1
fi
