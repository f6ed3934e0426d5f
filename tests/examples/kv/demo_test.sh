#!/usr/bin/env bash
# The demo stores, reads back and compares every line, in memory and on RocksDB, and says which; on
# errors it exits with a failure.
set -euo pipefail

lines=$(mktemp -p "$TEST_TMPDIR")
for ((line = 0; line < 2000; ++line)); do
  echo "line $line of two thousand"
done >"$lines"
export TMPDIR=$TEST_TMPDIR

run() {
  examples/kv/kv_demo --mode=event --server=examples/kv/kv_server "$@" "$lines" | tee "$lines.out"
  # The last column of the rows counts the errors, and each phase made a call per line.
  for phase in put get "put, direct" "get, direct"; do
    grep -Eq "^$phase +2,000 .* 0\$" "$lines.out"
  done
  grep -Eq "^put: [0-9.]+ of the rate of the same store in one process\$" "$lines.out"
}

run
grep -q "^store: memory" "$lines.out"
run --store=rocksdb
grep -q "^store: RocksDB .* synced before they are acknowledged\$" "$lines.out"
if compgen -G "$TEST_TMPDIR/kv_demo*" >/dev/null; then
  echo "the demo left its stores behind" >&2
  exit 1
fi

# A directory of the user's own stays, with what is in it.
run --store=rocksdb --directory="$TEST_TMPDIR/own" --durable=false
grep -q "^store: RocksDB .* in $TEST_TMPDIR/own, .* may lose" "$lines.out"
[ -e "$TEST_TMPDIR/own/CURRENT" ]

if examples/kv/kv_demo --server=examples/kv/kv_server --store=papyrus "$lines" 2>"$lines.err"; then
  echo "the demo took a store that does not exist" >&2
  exit 1
fi
grep -q "papyrus" "$lines.err"
