#!/usr/bin/env bash
# Proves that what ./dev new-service writes builds, passes its own test, serves and is called.
set -euo pipefail
top=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd -P)
readonly top

directory=$(mktemp -d)
server=
finish() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  (cd "$directory/block_index" 2>/dev/null && bazel clean --expunge >/dev/null 2>&1) || true
  rm -rf "$directory"
}
trap finish EXIT

fail() {
  echo "tests/new_service: $*" >&2
  exit 1
}

refused() {
  if "$top/dev" new-service "$@" 2>"$directory/complaint"; then fail "new-service $* was not refused"; fi
}

"$top/dev" new-service block_index --dir "$directory/block_index"
# A name that is none, one that C++ has, and a directory that is in use.
refused Block-Index --dir "$directory/other"
refused class --dir "$directory/other"
refused other --dir "$directory/block_index"
grep -q "is not empty" "$directory/complaint" || fail "an unclear complaint: $(cat "$directory/complaint")"

cd "$directory/block_index"
[ ! -e "$top/.bazelrc.user" ] || echo "try-import $top/.bazelrc.user" >>.bazelrc
bazel="$top/tools/dev/bazel.sh"
"$bazel" test --curses=no --color=no --show_progress_rate_limit=30 //...

# As its README says: a server, and a client that puts and gets.
bin=$("$bazel" info bazel-bin 2>/dev/null)
"$bin/server" 127.0.0.1:0 >"$directory/listening" &
server=$!
for _ in $(seq 300); do
  [ ! -s "$directory/listening" ] || break
  sleep 0.1
done
address=$(sed -n 's/^listening on //p' "$directory/listening")
[ -n "$address" ] || fail "the server does not listen"
"$bin/client" "$address" put color green
[ "$("$bin/client" "$address" get color)" = green ] || fail "the value did not come back"
if "$bin/client" "$address" get size 2>"$directory/complaint"; then fail "an unknown key was found"; fi
grep -q "there is no key 'size'" "$directory/complaint" || fail "$(cat "$directory/complaint")"
kill -TERM "$server"
wait "$server" || fail "the server ended with $?"
server=
echo "tests/new_service: passed"
