#!/usr/bin/env bash
# What a user sees of `verbena doctor`: in the guest a device that works, elsewhere what there is.
set -euo pipefail

report=$(tools/verbena/verbena doctor) || status=$?
echo "$report"
case ${VERBENA_DEVICE:-} in
  rdma:*)
    [ "${status:-0}" = 0 ]
    grep -q "^device ${VERBENA_DEVICE#rdma:}\$" <<<"$report"
    grep -Eq 'port 1 .* ACTIVE' <<<"$report"
    grep -Eq 'GID 1 .*\(10\.0\.0\.1\) RoCE v2' <<<"$report"
    [ "$(tail -n 1 <<<"$report")" = "RDMA works." ]
    ;;
  *) grep -Eq '^(no RDMA devices|device )' <<<"$report" ;;
esac
! tools/verbena/verbena doctor --no-such-flag 2>&1
