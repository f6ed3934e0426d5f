#!/usr/bin/env bash
# Builds and runs an example, optimised.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: ./dev demo [block_store|kv|rolling|stream] [arguments of the example]
       ./dev demo hello|balanced|dedupe|host_loop|interceptors|overload|own_memory|registered|retries|rolling_restart

  block_store  (default) a block server and a client as two processes: a directory tree, the given one or
               one that every Debian has, is stored in a volume on the disk, read back with many reads in
               flight, every file's SHA-256 compared; beside cp and memcpy
  kv           a key-value server and a client: every line of the given files, or of texts that every
               Debian has, is stored, read back with many calls in flight, verified; beside the same
               store in one process. --store=memory (default) or rocksdb, --directory, --durable
  rolling      a replicated key-value store: six servers are restarted, killed and frozen one after another
               under load; at last it counts lost writes and checks what the clients saw; starts an etcd of
               its own. --short for one shard and two events
  stream       a volume of the block store is copied by streams while calls go on over the same link, and
               compared
  hello        the README's program: one service, one call
  balanced     one channel, three servers: turns, a restart, keys, and a set that a file names
  dedupe       deposits that are repeated, also after a restart, and counted once
  host_loop    a server and a client on one thread, inside an epoll loop of the program's own
  interceptors a log, authorization and injected faults around calls
  overload     a server with more calls than it can serve, first without bounds, then with a queue
  own_memory   a cache that serves blocks out of its own memory, into memory of the client's own
  registered   servers that register in etcd, and a channel that follows them; starts an etcd of its own
  retries      three servers, one of them slow: hedges, retries, and calls that have none
  rolling_restart
               three server processes are restarted in turn while a client calls them: no call fails

./dev demo EXAMPLE --help lists the arguments of block_store, kv, rolling and stream; the others take none.
TEXT
}

example=block_store
case ${1:-} in
  -h | --help) usage; exit 0 ;;
  block_store | kv | stream | hello | balanced | dedupe | host_loop | interceptors | overload | own_memory | registered | retries | rolling | rolling_restart) example=$1; shift ;;
  -*) ;;
  "") ;;
  *)
    # A path is an argument of block_store; a word that is none is more likely a mistyped example.
    if [ ! -e "$1" ]; then
      echo "dev demo: '$1' is neither an example (block_store, kv, stream, hello, balanced, dedupe, host_loop, interceptors, overload, own_memory, registered, retries, rolling, rolling_restart) nor a file" >&2
      exit 2
    fi
    ;;
esac

target=//examples/$example:demo
echo "Building $target, optimised; the first build takes minutes ..." >&2
flags=(--config=opt --show_result=0 --ui_event_filters=-info)
[ ! -t 2 ] || flags+=(--curses=yes --show_progress_rate_limit=0.5)
# Abseil's flags have underscores where people write dashes.
arguments=()
for word in "$@"; do
  name=${word%%=*}
  [[ $name != --?* ]] || word=--$(tr - _ <<<"${name#--}")${word#"$name"}
  arguments+=("$word")
done
callers_directory=$PWD
cd "$VERBENA_TOP"
tools/dev/bazel.sh build "${flags[@]}" "$target"
# The target may be an alias: Bazel knows what it stands for.
binary=$(tools/dev/bazel.sh cquery "${flags[@]}" --noshow_progress --output=starlark \
  '--starlark:expr=target.files_to_run.executable.path' "$target")
binary=$(readlink -f .bazel/bin)/${binary#bazel-out/*/bin/}
cd "$callers_directory"
if [ "$example" = registered ] || [ "$example" = rolling ]; then
  exec "$VERBENA_TOP/tools/dev/etcd.sh" -- "$binary" "${arguments[@]}"
fi
exec "$binary" "${arguments[@]}"
