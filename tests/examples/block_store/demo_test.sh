#!/usr/bin/env bash
# The demo on a small tree: it stores, reads back and compares every file, prints each row, leaves nothing
# on the disk; Ctrl-C ends it and its server.
set -euo pipefail

readonly bin=examples/block_store
work=$(mktemp -d -p "$TEST_TMPDIR")
tree=$work/tree
mkdir -p "$tree/sub/empty" "$work/disk"
: >"$tree/nothing"
for size in 1 4095 4096 4097 300000; do
  head -c "$size" /dev/urandom >"$tree/sub/$size"
done
ln -s nothing "$tree/a link"

fail() {
  echo "FAILED: $*" >&2
  cat "$work"/*.out "$work"/*.err >&2
  exit 1
}

demo() {
  timeout -k 5 200 "$bin/block_store_demo" --mode=event --server="$bin/block_store_server" \
    --directory="$work/disk" "$@"
}

demo --request_bytes=8192 "$tree" >"$work/demo.out" 2>"$work/demo.err" || fail "exit status $?"
grep -q "6 files, 312.3 kB in all" "$work/demo.out" || fail "inventory"
grep -qF "left out: $tree/a link (symbolic link)" "$work/demo.out" || fail "the link is not named"
grep -q "^6 files came back with the SHA-256 that each had" "$work/demo.out" || fail "comparison"
for row in store read verify cp 'read(2)' memcpy; do
  grep -q "^$row  *[0-9-]" "$work/demo.out" || fail "no row '$row'"
done
[ -z "$(ls "$work/disk")" ] || fail "something stays on the disk"

# The server as in another container.
if unshare --user --pid --fork true 2>/dev/null; then
  demo --server_in=pid,user,ipc,mount,uts "$tree" >"$work/apart.out" 2>"$work/apart.err" || fail "a server apart"
  grep -q "^6 files came back with the SHA-256 that each had" "$work/apart.out" || fail "comparison, apart"
else
  echo "left out: a server in namespaces of its own, which the kernel refuses"
fi
# In a network of its own, on a host that has addresses of those which the demo would take first.
on_host() {
  PATH=$PATH:/usr/sbin unshare --user --map-root-user --net sh -euc '
    ip link set lo up
    ip link add own type veth peer name other
    ip address add 192.0.2.2/24 dev own
    ip link set own up
    ip link set other up
    exec "$@"' sh "$@"
}
if on_host true 2>/dev/null; then
  on_host env --unset=VERBENA_DEVICE timeout -k 5 200 "$bin/block_store_demo" --mode=event --server="$bin/block_store_server" \
    --directory="$work/disk" --server_in=net "$tree" >"$work/net.out" 2>"$work/net.err" || fail "a server's network"
  grep -q "^6 files came back with the SHA-256 that each had" "$work/net.out" || fail "comparison, over a cable"
  grep -q "listening on 198.51.100.2:" "$work/net.err" || fail "the cable has the host's own network"
else
  echo "left out: a server in a network of its own, which the kernel refuses"
fi
if demo --server_in=pod "$tree" >"$work/pod.out" 2>"$work/pod.err"; then fail "a namespace that is none"; fi
grep -qF "no namespace 'pod'" "$work/pod.err" || fail "the namespace that is none is not named"

demo "$tree/sub/4097" >"$work/one.out" 2>"$work/one.err" || fail "a single file"
if demo "$work/none" >"$work/none.out" 2>"$work/none.err"; then fail "a tree that is not there"; fi
grep -qF "$work/none" "$work/none.err" || fail "the missing tree is not named"

# Ctrl-C, at a moment when the server runs. Job control keeps bash from having the program ignore it.
truncate -s 256M "$work/large"
set -m
timeout -k 5 100 "$bin/block_store_demo" --mode=event --server="$bin/block_store_server" \
  --directory="$work/disk" --request_bytes=4096 --in_flight=1 "$work/large" \
  >"$work/stopped.out" 2>"$work/stopped.err" &
pid=$!
set +m
server=
for ((i = 0; i < 600 && ${#server} == 0; ++i)); do
  sleep 0.05
  server=$(sed -n 's/^block_store_server is process \([0-9]*\),.*/\1/p' "$work/stopped.err")
done
[ -n "$server" ] || fail "the server does not run"
kill -INT "$pid"
status=0
wait "$pid" || status=$?
[ "$status" = 130 ] || fail "exit status $status after SIGINT"
grep -q "^block_store_demo: interrupted" "$work/stopped.err" || fail "it does not say so"
if kill -0 "$server" 2>/dev/null; then fail "the server is still there"; fi
[ -z "$(ls "$work/disk")" ] || fail "something stays on the disk after SIGINT"
