#!/usr/bin/env bash
# Runs its cases beside a real etcd. If there is none, they say so and are skipped.
set -uo pipefail
# Bazel's tests have none, and the package is kept below it.
export HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
tools/dev/etcd.sh -- tests/rpc/naming/etcd/real_etcd "$@"
result=$?
if [ "$result" -eq 77 ]; then
  unset VERBENA_ETCD
  exec tests/rpc/naming/etcd/real_etcd "$@"
fi
exit "$result"
