#!/usr/bin/env bash
# Runs a command beside an etcd of its own.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tools/dev/etcd.sh -- COMMAND [ARGUMENT...]

Starts an etcd on free ports, with its data in memory, runs COMMAND with its address (host:port) in
VERBENA_ETCD, and ends it. Exits as COMMAND does, or with 77 if there is no etcd to be had.

The etcd is that on the PATH. If there is none, the Debian package etcd-server is downloaded and
unpacked below ~/.cache/verbena-etcd: never installed, since that would start a daemon.
TEXT
}

case ${1:-} in
  -h | --help) usage; exit 0 ;;
  --) shift ;;
  *) usage >&2; exit 2 ;;
esac
[ $# -gt 0 ] || { usage >&2; exit 2; }

unavailable() {
  echo "etcd.sh: no etcd: $*" >&2
  exit 77
}

# Prints the path of the program.
find_etcd() {
  if command -v etcd; then return; fi
  local cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/verbena-etcd
  if [ ! -x "$cache/usr/bin/etcd" ]; then
    mkdir -p "$cache" || unavailable "cannot make $cache"
    local fresh
    fresh=$(mktemp -d "$cache/download.XXXXXX")
    if ! (cd "$fresh" && apt-get download etcd-server && dpkg -x etcd-server_*.deb unpacked) >&2; then
      rm -rf "$fresh"
      unavailable "the Debian package etcd-server cannot be downloaded (apt-get update may help)"
    fi
    # Whoever is first wins; the others' copies are the same.
    mv -T "$fresh/unpacked/usr" "$cache/usr" 2> /dev/null || true
    rm -rf "$fresh"
  fi
  echo "$cache/usr/bin/etcd"
}

free_ports() {
  python3 -c '
import socket
sockets = [socket.socket() for _ in range(2)]
for each in sockets:
    each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in sockets))'
}

etcd=$(find_etcd)
memory=/dev/shm
[ -w "$memory" ] || memory=${TMPDIR:-/tmp}
data=$(mktemp -d "$memory/verbena-etcd.XXXXXX")
pid=
finish() {
  if [ -n "$pid" ]; then
    kill "$pid" 2> /dev/null || true
    wait "$pid" 2> /dev/null || true
  fi
  rm -rf "$data"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

answers() {
  python3 - "$1" <<'PYTHON'
import sys
import urllib.request
try:
    urllib.request.urlopen(f"http://{sys.argv[1]}/health", timeout=1).read()
except OSError:
    sys.exit(1)
PYTHON
}

# Somebody else may take a port before etcd does: three attempts.
for attempt in 1 2 3; do
  read -r client peer < <(free_ports)
  "$etcd" --name verbena --data-dir "$data/$attempt" --unsafe-no-fsync \
    --listen-client-urls "http://127.0.0.1:$client" --advertise-client-urls "http://127.0.0.1:$client" \
    --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
    --initial-cluster "verbena=http://127.0.0.1:$peer" > "$data/log" 2>&1 &
  pid=$!
  for _ in $(seq 150); do
    if answers "127.0.0.1:$client"; then break 2; fi
    kill -0 "$pid" 2> /dev/null || break
    sleep 0.1
  done
  kill "$pid" 2> /dev/null || true
  wait "$pid" 2> /dev/null || true
  pid=
done
if [ -z "$pid" ]; then
  tail -5 "$data/log" >&2
  unavailable "it does not start"
fi

VERBENA_ETCD=127.0.0.1:$client VERBENA_ETCD_PID=$pid "$@"
