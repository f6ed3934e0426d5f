#!/usr/bin/env bash
# The first program runs over an RDMA device for a user who may pin 8 MiB, and says that it runs
# small; with 64 KiB it does not start, and says what to set. The soft device pins nothing: there it
# runs with 64 KiB, too, and with all its sizes.
set -euo pipefail

# The directories above the built program may be closed to other users.
hello=$TEST_TMPDIR/hello/hello
install -m 755 -D examples/hello/hello "$hello"
chmod 755 "$TEST_TMPDIR" "$TEST_TMPDIR/hello"

# Runs hello with so many bytes of RLIMIT_MEMLOCK behind the words "$@"; leaves what it prints in
# `out` and `err`, and its exit status in `status`.
greet() {
  local bytes=$1
  shift
  status=0
  out=$("$@" prlimit --memlock="$bytes:$bytes" "$hello" 2>"$TEST_TMPDIR/err") || status=$?
  err=$(cat "$TEST_TMPDIR/err")
  printf '%s\n' "$out" "$err"
}

case ${VERBENA_DEVICE:-} in
  rdma:*)
    nobody=(setpriv --reuid=1000 --clear-groups --bounding-set=-ipc_lock)
    greet 8388608 "${nobody[@]}"
    [ "$status" = 0 ]
    [ "$out" = "Hello, storage!" ]
    [ "$(grep -c 'runs with LinkLimits::Small()' <<<"$err")" = 1 ]
    grep -q 'RLIMIT_MEMLOCK is 8192 KiB' <<<"$err"
    # All that calls need was within the limit.
    if grep -Eq 'could be registered|budget shrinks' <<<"$err"; then exit 1; fi

    greet 65536 "${nobody[@]}"
    [ "$status" != 0 ]
    [ -z "$out" ]
    grep -q 'RLIMIT_MEMLOCK is 64 KiB' <<<"$err"
    grep -q 'LimitMEMLOCK=' <<<"$err"

    # CAP_IPC_LOCK lifts the limit.
    greet 65536
    [ "$status" = 0 ]
    if grep -q 'LinkLimits::Small()' <<<"$err"; then exit 1; fi
    ;;
  *)
    export VERBENA_DEVICE=soft
    greet 65536
    [ "$status" = 0 ]
    [ "$out" = "Hello, storage!" ]
    if grep -q 'LinkLimits::Small()' <<<"$err"; then exit 1; fi
    ;;
esac
