#!/usr/bin/env bash
# Bazel as every command of ./dev runs it: bazel.sh <bazel command> [arguments]. Works in the current
# directory's workspace. A disk cache in the user's cache directory makes a fresh clone build fast.
set -euo pipefail

# Bazel keeps its output below HOME, and fails obscurely when it cannot.
if [ ! -w "${HOME:-/nonexistent}" ]; then
  HOME="${TMPDIR:-/tmp}/verbena-home-$(id -u)"
  export HOME
  mkdir -p "$HOME"
  [ -O "$HOME" ] || { echo "dev: HOME is not writable, and $HOME is not ours" >&2; exit 1; }
  chmod 700 "$HOME"
  echo "dev: HOME is not writable; building below $HOME" >&2
  unset XDG_CACHE_HOME
fi
command -v bazel >/dev/null || { echo "dev: no bazel; run ./dev install-deps" >&2; exit 1; }

bazel_command=${1:?usage: bazel.sh build, test or run, and targets}
shift
flags=()
case $bazel_command in
  build | test | run | aquery | cquery)
    # Of the workspace, and of the clone that it depends on.
    top=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd -P)
    own=(.bazelrc.user "$top/.bazelrc.user")
    if ! grep -qs -e '--disk_cache' "${own[@]}"; then
      flags+=("--disk_cache=${XDG_CACHE_HOME:-$HOME/.cache}/verbena-bazel")
    fi
    if ! grep -qs -e '--jobs' "${own[@]}"; then
      # A compile that sees protobuf and Asio takes over 1 GB: memory bounds the jobs, too.
      memory_gb=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
      jobs=$(nproc)
      [ "$jobs" -le "$((memory_gb * 2 / 3))" ] || jobs=$((memory_gb * 2 / 3))
      flags+=("--jobs=$((jobs > 0 ? jobs : 1))")
    fi
    # A sandbox is a directory of links: making them takes an eighth of a build on a disk. It holds the
    # files that a test writes, too: who runs tests says whether these may lie in memory.
    shm_gb=$(df --output=avail -BG /dev/shm 2>/dev/null | sed -n '2s/[^0-9]//gp')
    if { [ "$bazel_command" = build ] || [ -n "${VERBENA_TESTS_IN_MEMORY:-}" ]; } && [ -w /dev/shm ] && [ "${shm_gb:-0}" -ge "$((2 * $(nproc)))" ] &&
      ! grep -qs -e '--sandbox_base' "${own[@]}"; then
      flags+=("--sandbox_base=/dev/shm")
    fi
    ;;
esac
exec bazel "$bazel_command" "${flags[@]}" "$@"
