#!/usr/bin/env bash
# A channel follows the servers that register in etcd and leave it. Skipped if there is no etcd.
set -uo pipefail

# Bazel's tests have none, and the package is kept below it.
export HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
output=$(timeout 50 tools/dev/etcd.sh -- examples/registered/registered 2> "$TEST_TMPDIR/log")
result=$?
if [ "$result" -eq 77 ]; then
  echo "skipped: $(tail -1 "$TEST_TMPDIR/log")"
  exit 0
fi
expected="a registers: a 6
b and c register, too: a 2, b 2, c 2
keys in etcd: demo/members/a, demo/members/b, demo/members/c
a shuts down: b 3, c 3
keys in etcd: demo/members/b, demo/members/c"
if [ "$result" -ne 0 ] || [ "$output" != "$expected" ]; then
  printf 'expected:\n%s\ngot (exit %s):\n%s\n' "$expected" "$result" "$output"
  cat "$TEST_TMPDIR/log"
  exit 1
fi
