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

target=//examples/$example:demo
echo "Building $target, optimised; the first build takes minutes ..." >&2
flags=(--config=opt --show_result=0 --ui_event_filters=-info)
[ ! -t 2 ] || flags+=(--curses=yes --show_progress_rate_limit=0.5)
callers_directory=$PWD
cd "$VERBENA_TOP"
tools/dev/bazel.sh build "${flags[@]}" "$target"
# The target may be an alias: Bazel knows what it stands for.
binary=$(tools/dev/bazel.sh cquery "${flags[@]}" --noshow_progress --output=starlark \
  '--starlark:expr=target.files_to_run.executable.path' "$target")
binary=$(readlink -f .bazel/bin)/${binary#bazel-out/*/bin/}
cd "$callers_directory"
exec "$binary" "$@"
