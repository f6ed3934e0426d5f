#!/usr/bin/env bash
# Builds and runs an example, optimised.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: ./dev demo [kv|hello] [arguments of the example]

  kv      (default) a key-value server and a client as two processes: every line of the given files,
          or of texts that every Debian has, is stored, read back with many calls in flight, verified
  hello   the README's program: one service, one call

./dev demo kv --help and ./dev demo hello --help list the example's own arguments.
TEXT
}

example=kv
case ${1:-} in
  -h | --help) usage; exit 0 ;;
  kv | hello) example=$1; shift ;;
  -*) ;;
  "") ;;
  *)
    # A file is an argument of kv; a word that is no file is more likely a mistyped example.
    if [ ! -e "$1" ]; then
      echo "dev demo: '$1' is neither an example (kv, hello) nor a file" >&2
      exit 2
    fi
    ;;
esac

echo "Building examples/$example ..." >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cd_back=$PWD
cd "$VERBENA_TOP"
if ! tools/dev/bazel.sh build --config=opt "//examples/$example:demo" >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
binary=$(readlink -f .bazel/bin)/examples/$example/demo
rm -f "$log"
cd "$cd_back"
exec "$binary" "$@"
