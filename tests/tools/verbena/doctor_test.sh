#!/usr/bin/env bash
# `verbena doctor` shows its user, in the guest, a device that works, and the same device without the
# memory that it needs; `verbena selftest` passes on it. Elsewhere they show what there is.
set -euo pipefail

# Runs "$@"; leaves what it prints in `report`, and its exit status in `status`.
examine() {
  status=0
  report=$("$@") || status=$?
  echo "$report"
}
last_line() { tail -n 1 <<<"$report"; }

examine tools/verbena/verbena doctor
case ${VERBENA_DEVICE:-} in
  rdma:*)
    [ "$status" = 0 ]
    grep -q "^device ${VERBENA_DEVICE#rdma:}\$" <<<"$report"
    grep -Eq 'port 1 .* ACTIVE' <<<"$report"
    grep -Eq 'GID 1 .*\(10\.0\.0\.1\) RoCE v2' <<<"$report"
    [ "$(last_line)" = "RDMA works." ]

    # The same for a user who may lock next to nothing.
    install -m 755 -D tools/verbena/verbena "$TEST_TMPDIR/doctor/verbena"
    examine setpriv --reuid 65534 --regid 65534 --clear-groups \
      prlimit --memlock=65536:65536 "$TEST_TMPDIR/doctor/verbena" doctor
    [ "$status" = 1 ]
    grep -q '^error: RLIMIT_MEMLOCK is 64 KiB; each executor pins .* KiB even with' <<<"$report"
    grep -q '^  mend: .*memlock' <<<"$report"
    [ "$(last_line)" = "RDMA does not work." ]
    ;;
  *)
    grep -Eq '^(no RDMA devices|device )' <<<"$report"
    grep -q '^two processes of this host' <<<"$report"
    grep -Eq '^  - both of user .*: shared memory' <<<"$report"
    if grep -q '^no RDMA devices' <<<"$report"; then
      [ "$status" = 0 ]
      grep -q '^advice: ' <<<"$report"
      [ "$(last_line)" = "The soft device works; there is no RDMA device." ]
    fi
    ;;
esac
# What surrounds this process, whatever that is.
examine tools/verbena/verbena doctor --container
grep -q '^container$' <<<"$report"
grep -Eq '^  user +[0-9]' <<<"$report"
grep -Eq '^  io_uring +(allowed|refused)' <<<"$report"
grep -Eq '^  memory.max ' <<<"$report"
# The RDMA device of the run, or the soft one.
device=soft
case ${VERBENA_DEVICE:-} in rdma:*) device=$VERBENA_DEVICE ;; esac
tools/verbena/verbena selftest "$device" | tee "$TEST_TMPDIR/selftest"
[ "$(tail -n 1 "$TEST_TMPDIR/selftest")" = "All that was tried works." ]
status=0
tools/verbena/verbena selftest no_such_device0 2>"$TEST_TMPDIR/selftest" || status=$?
[ "$status" = 2 ]
grep -q 'no_such_device0 cannot be tested: NOT_FOUND' "$TEST_TMPDIR/selftest"

for wrong in --no-such-flag "--container more"; do
  # shellcheck disable=SC2086  # two arguments
  if tools/verbena/verbena doctor $wrong 2>&1; then exit 1; fi
done
