#!/usr/bin/env bash
# The servers take turns, a restart fails no call, keys keep their servers, and the file is followed.
set -euo pipefail

output=$(TMPDIR="$TEST_TMPDIR" timeout 50 examples/balanced/balanced 2> "$TEST_TMPDIR/log")
expected="in turns: a 10, b 10, c 10
b is back: a 10, b 10, c 10
keys with a server of their own: 100 of 100
the file names a: a 4
the file names b, too: a 1, b 3"
# How the calls are spread while b goes depends on when its end is known.
if [ "$(grep -v '^without b' <<< "$output")" != "$expected" ]; then
  printf 'expected:\n%s\ngot:\n%s\n' "$expected" "$output"
  exit 1
fi
if grep -q failed <<< "$output"; then
  printf 'a call failed:\n%s\n' "$output"
  exit 1
fi
