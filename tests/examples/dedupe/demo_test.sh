#!/usr/bin/env bash
# The deposits are counted once, and a restart is not taken for a deposit that was never made.
set -euo pipefail

output=$(timeout 50 examples/dedupe/dedupe 2> "$TEST_TMPDIR/log")
expected=$(sed -n 's/^    \(a deposit of 5: .*\|another, .*\|  in the database: .*\|repeated after .*\)$/\1/p' \
  examples/dedupe/README.md)
if [ -z "$expected" ] || [ "$output" != "$expected" ]; then
  printf 'expected:\n%s\ngot:\n%s\n' "$expected" "$output"
  exit 1
fi
