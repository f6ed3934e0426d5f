#!/usr/bin/env bash
# Builds and runs an example, optimised.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: ./dev demo [block_store|kv|rolling|stream] [arguments of the example]
       ./dev demo block_store|kv|replicated_kv --serve [--admin PORT] [arguments of the server]
       ./dev demo hello|balanced|dedupe|host_loop|interceptors|overload|own_memory|registered|retries|rolling_restart
       ./dev demo observed [--seconds N] [--seed N]

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
  observed     three servers of kv, a client and a Prometheus of its own: one server is stopped again and again, and PromQL
               tells which; half a minute
  overload     a server with more calls than it can serve, first without bounds, then with a queue
  own_memory   a cache that serves blocks out of its own memory, into memory of the client's own
  registered   servers that register in etcd, and a channel that follows them; starts an etcd of its own
  retries      three servers, one of them slow: hedges, retries, and calls that have none
  rolling_restart
               three server processes are restarted in turn while a client calls them: no call fails

With --serve the example's server runs alone until Ctrl-C. It keeps its data in memory, or in a directory that
is removed at the end. It prints where it listens and where its status page is: at the port after --admin, or
at a free one. replicated_kv runs one replica of one shard, and starts an etcd of its own.

./dev demo EXAMPLE --help lists the arguments of block_store, kv, observed, rolling and stream; the others take none.
TEXT
}

# --serve: the example's server alone. Removes both options from the arguments.
serves=
admin_port=0
words=()
while [ $# -gt 0 ]; do
  case $1 in
    --serve) serves=yes ;;
    --admin=*) admin_port=${1#--admin=} ;;
    --admin)
      admin_port=${2:-}
      [ $# -lt 2 ] || shift
      ;;
    *) words+=("$1") ;;
  esac
  shift
done
set -- "${words[@]}"
if ! [[ $admin_port =~ ^[0-9]{1,5}$ ]] || [ "$admin_port" -gt 65535 ]; then
  echo "dev demo: --admin is '$admin_port', but must be a port: 0 to 65535" >&2
  exit 2
elif [ -z "$serves" ] && [ "$admin_port" != 0 ]; then
  echo "dev demo: --admin needs --serve" >&2
  exit 2
elif [ "$serves" ]; then
  case ${1:-block_store} in
    block_store | kv | replicated_kv) ;;
    *)
      echo "dev demo: '$1' has no server to run alone, only block_store, kv and replicated_kv have" >&2
      exit 2
      ;;
  esac
fi

example=block_store
case ${1:-} in
  -h | --help) usage; exit 0 ;;
  # Needs a Prometheus, which the roots of ./dev toolchains do not have.
  observed) example=$1; shift ;;
  block_store | kv | stream | hello | balanced | dedupe | host_loop | interceptors | overload | own_memory | registered | retries | rolling | rolling_restart) example=$1; shift ;;
  replicated_kv)
    if [ -z "$serves" ]; then
      echo "dev demo: replicated_kv has no demo but --serve; see ./dev demo rolling" >&2
      exit 2
    fi
    example=$1
    shift
    ;;
  -*) ;;
  "") ;;
  *)
    # A path is an argument of block_store; a word that is none is more likely a mistyped example.
    if [ ! -e "$1" ]; then
      echo "dev demo: '$1' is neither an example (block_store, kv, stream, hello, balanced, dedupe, host_loop, interceptors, observed, overload, own_memory, registered, retries, rolling, rolling_restart) nor a file" >&2
      exit 2
    fi
    ;;
esac

target=//examples/$example:demo
if [ "$serves" ]; then
  case $example in
    block_store) target=//examples/block_store:block_store_server ;;
    kv) target=//examples/kv:kv_server ;;
    replicated_kv) target=//examples/replicated_kv:replica_server ;;
  esac
fi
if [ "$example" = observed ]; then
  case " $* " in *" --help "* | *" -h "*) exec "$VERBENA_TOP/tools/dev/observed.py" --help ;; esac
  # Before minutes of building: whether the arguments are right, and there is a Prometheus.
  "$VERBENA_TOP/tools/dev/observed.py" --check "$@"
fi
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
if [ "$serves" ]; then
  directory=$(mktemp -d "${TMPDIR:-/var/tmp}/verbena-$example.XXXXXX")
  trap 'rm -rf "$directory"' EXIT
  command=("$binary" --address=127.0.0.1:0 "--admin=127.0.0.1:$admin_port")
  [ "$example" = kv ] || command+=("--directory=$directory")
  if [ "$example" = replicated_kv ]; then
    # etcd.sh tells the inner shell where its etcd is.
    # shellcheck disable=SC2016
    command=("$VERBENA_TOP/tools/dev/etcd.sh" -- sh -c 'exec "$@" "--etcd=$VERBENA_ETCD"' sh
      "${command[@]}" --name=r1 --replicas=r1)
  fi
  # As a job it has a process group of its own, and does not ignore SIGINT.
  set -m
  "${command[@]}" "${arguments[@]}" &
  pid=$!
  trap 'kill -INT -- "-$pid" 2> /dev/null || true' INT TERM
  status=0
  while kill -0 "$pid" 2> /dev/null; do
    status=0
    wait "$pid" || status=$?
  done
  exit "$status"
fi
if [ "$example" = observed ]; then
  exec "$VERBENA_TOP/tools/dev/observed.py" "--server=${binary%/observed/kv_load}/kv/kv_server" "--client=$binary" \
    "${arguments[@]}"
fi
if [ "$example" = registered ] || [ "$example" = rolling ]; then
  exec "$VERBENA_TOP/tools/dev/etcd.sh" -- "$binary" "${arguments[@]}"
fi
exec "$binary" "${arguments[@]}"
