#!/usr/bin/env bash
# A backup is restarted and the primary killed under load: no acknowledged write is lost, none takes
# effect twice, and what the clients saw is linearizable. Skipped if there is no etcd.
set -uo pipefail

# Bazel's tests have none, and the package is kept below it.
export HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
export TMPDIR=$TEST_TMPDIR
output=$(timeout 150 tools/dev/etcd.sh -- examples/rolling/rolling --short 2> "$TEST_TMPDIR/log")
result=$?
if [ "$result" -eq 77 ]; then
  echo "skipped: $(tail -1 "$TEST_TMPDIR/log")"
  exit 0
fi
echo "$output"
for line in "acknowledged writes lost 0" "duplicated 0" "linearizable yes" "calls given up 0"; do
  grep -qx "$line" <<< "$output" || result=1
done
grep -Eq "^restart s[1-3] +backup +- +[0-9]+$" <<< "$output" || result=1
grep -Eq "^kill -9 s[1-3] +primary +[0-9]+ +[0-9]+$" <<< "$output" || result=1
[ "$result" -eq 0 ] || tail -40 "$TEST_TMPDIR/log"
exit "$result"
