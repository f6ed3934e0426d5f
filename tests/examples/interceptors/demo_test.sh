#!/usr/bin/env bash
# A call without a token ends before its handler, a call with one gets its answer, and an injected
# fault reaches the caller and the log.
set -euo pipefail

log="$TEST_TMPDIR/log"
output=$(timeout 50 examples/interceptors/interceptors 2> "$log")
expected="a stranger: no token that we know (not_executed)
ada: 1234 cents
ada, of bob: not your account (executed)
flaky, first: 1234 cents
flaky, second: injected (not_executed)"
if [ "$output" != "$expected" ]; then
  printf 'expected:\n%s\ngot:\n%s\n' "$expected" "$output"
  exit 1
fi
[ "$(grep -c 'interceptors.Accounts/Balance' "$log")" = 5 ]
grep -q 'UNAUTHENTICATED not_executed in' "$log"
grep -q 'UNAVAILABLE not_executed in' "$log"
