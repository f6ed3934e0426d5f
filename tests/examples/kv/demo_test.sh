#!/usr/bin/env bash
# The demo stores, reads back and compares every line; on errors it exits with a failure.
set -euo pipefail

lines=$(mktemp -p "$TEST_TMPDIR")
for ((line = 0; line < 2000; ++line)); do
  echo "line $line of two thousand"
done >"$lines"
examples/kv/kv_demo --mode=event --server=examples/kv/kv_server "$lines" | tee "$lines.out"
# The last column of both rows counts the errors, and each phase made a call per line.
for phase in put get; do
  grep -Eq "^$phase +2,000 .* 0\$" "$lines.out"
done
