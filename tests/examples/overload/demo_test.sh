#!/usr/bin/env bash
# The example serves calls of each client in both phases, and ends by itself. Only the second refuses.
set -euo pipefail

output=$(timeout 50 examples/overload/overload)
fail() { echo "$1; it said: $output" >&2; exit 1; }
for client in "the greedy client" "the modest client" "its heartbeats"; do
  [ "$(grep -cE "$client +[1-9][0-9]* " <<<"$output")" = 2 ] || fail "a phase serves none of $client"
done
greedy=$(grep "the greedy client" <<<"$output")
[ "$(awk 'NR == 1 {print $5}' <<<"$greedy")" = 0 ] || fail "the first phase refuses calls"
[ "$(awk 'NR == 2 {print $5}' <<<"$greedy")" -gt 0 ] || fail "the second phase refuses none"
