#!/usr/bin/env bash
# Server and client as their users run them: trees go in and come out as they were, by several clients
# at once; what is wrong is said.
set -euo pipefail

readonly bin=examples/block_store
work=$(mktemp -d -p "$TEST_TMPDIR")
server_pid=

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

start_server() {
  : >"$work/server.out"  # there before the server is
  "$bin/block_store_server" --directory="$work/volumes" --address=127.0.0.1:0 --mode=event \
    --executors=2 >"$work/server.out" &
  server_pid=$!
  for ((i = 0; i < 600; ++i)); do
    address=$(sed -n 's/^listening on //p' "$work/server.out")
    [ -z "$address" ] || return 0
    kill -0 "$server_pid" || fail "the server has ended"
    sleep 0.05
  done
  fail "the server does not listen"
}

stop_server() {
  kill -TERM "$server_pid"
  wait "$server_pid" || fail "the server's exit status is $?"
  server_pid=
}

trap '[ -z "$server_pid" ] || kill -KILL "$server_pid"' EXIT

copy() { timeout 120 "$bin/block_copy" --mode=event --server="$address" "$@"; }

# refused TEXT COMMAND: it fails, and says TEXT on standard error.
refused() {
  local text=$1
  shift
  if "$@" >"$work/refused.out" 2>"$work/refused.err"; then fail "'$*' went well"; fi
  grep -qF -- "$text" "$work/refused.err" || {
    cat "$work/refused.err" >&2
    fail "'$*' does not say '$text'"
  }
}

# Odd sizes, around blocks and requests; names; permissions; links, which are left out.
tree=$work/tree
mkdir -p "$tree/deep/er" "$tree/empty directory" "$work/volumes"
: >"$tree/empty"
for size in 1 4095 4096 4097 65536 262143 262144 262145 1500001; do
  head -c "$size" /dev/urandom >"$tree/deep/$size"
done
printf 'text' >"$tree/deep/er/a name with	odd characters"
chmod 400 "$tree/deep/1"
chmod 755 "$tree/deep/4095"
ln -s ../empty "$tree/deep/link"

start_server
copy put "$tree" tree >"$work/put.out" 2>"$work/put.err"
grep -q 'stored 11 files' "$work/put.out" || fail "put says: $(cat "$work/put.out")"
grep -qF "left out: $tree/deep/link (symbolic link)" "$work/put.err" || fail "the link is not named"
copy verify tree | grep -q 'verified 11 files' || fail "verify"
copy get tree "$work/out" >"$work/get.out" 2>&1
rm "$tree/deep/link"
diff -r "$tree" "$work/out" || fail "what came out is not what went in"
[ "$(stat -c %a "$work/out/deep/1" "$work/out/deep/4095" | xargs)" = "400 755" ] || fail "permissions"

# Several clients at once, with small requests; and a single file.
pids=()
for client in 1 2 3; do
  (copy put "$tree" "copy$client" --request_bytes=4096 --in_flight=32 &&
    copy get "copy$client" "$work/out$client") >"$work/client$client.out" 2>&1 &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || fail "a client failed: $(cat "$work"/client*.out)"; done
for client in 1 2 3; do diff -r "$tree" "$work/out$client" || fail "client $client"; done
copy put "$tree/deep/1500001" one >/dev/null 2>&1
copy get one "$work/one" >/dev/null 2>&1
cmp "$tree/deep/1500001" "$work/one/1500001"
# More in flight than there is memory for.
copy verify one --in_flight=1024 --request_bytes=1048576 >/dev/null 2>&1 || fail "many in flight"
copy list >"$work/list.out"
[ "$(awk '{print $1}' "$work/list.out" | xargs)" = "copy1 copy2 copy3 one tree" ] || fail "list"

# Commands that are refused.
refused "holds something" copy put "$tree" tree
refused "there is no volume 'none'" copy verify none
refused "cannot be a volume's name" copy put "$tree" ../x
refused "$work/none" copy put "$work/none" x
refused "$work/out" copy get tree "$work/out"
refused "--request_bytes" copy put "$tree" x --request_bytes=100
refused "say what to do" copy
refused "in use by another" timeout 60 "$bin/block_store_server" --directory="$work/volumes" \
  --address=127.0.0.1:0
mkdir "$work/more"
refused "$address" timeout 60 "$bin/block_store_server" --directory="$work/more" --address="$address"
refused "$work/missing" timeout 60 "$bin/block_store_server" --directory="$work/missing"
refused "--directory" timeout 60 "$bin/block_store_server"
refused "not an option" timeout 60 "$bin/block_store_server" frobnicate

# A restart keeps all; a damaged volume is not handed over as good, and the damaged file is named.
stop_server
# Text of this length is not there by chance, as one byte of random content would be.
printf 'damage in a volume' |
  dd of="$work/volumes/one.volume" bs=1 seek=5000 conv=notrunc status=none
start_server
copy verify tree >/dev/null 2>&1 || fail "not there after a restart"
refused "'1500001' came back with another SHA-256" copy verify one
stop_server
refused "$address" copy list
for program in block_store_server block_copy; do
  timeout 60 "$bin/$program" --help | grep -q "^usage: $program" || fail "$program --help"
done
