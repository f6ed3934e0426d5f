#!/usr/bin/env bash
# The demo on a small volume: it copies and compares every block, and leaves nothing on the disk.
set -euo pipefail

work=$(mktemp -d -p "$TEST_TMPDIR")

fail() {
  echo "FAILED: $*" >&2
  cat "$work"/demo.out "$work"/demo.err >&2
  exit 1
}

mkdir "$work/disk"
timeout -k 5 200 examples/stream/stream_demo --megabytes=4 --readers=2 --directory="$work/disk" \
  --server=examples/block_store/block_store_server >"$work/demo.out" 2>"$work/demo.err" || fail "exit status $?"
grep -q "^copied by two streams  *16 " "$work/demo.out" || fail "not all parts were copied"
grep -q "^parts repaired by one stream  *2 " "$work/demo.out" || fail "not all damaged parts were repaired"
[ "$(tail -n 1 "$work/demo.out")" = "errors 0" ] || fail "errors"
[ -z "$(ls "$work/disk")" ] || fail "something stays on the disk"
