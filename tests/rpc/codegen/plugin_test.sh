#!/usr/bin/env bash
# plugin_test.sh <protoc-gen-verbena> <protoc>
set -uo pipefail

plugin=$(readlink -f "$1")
protoc=$(readlink -f "$2")
testdata=tests/rpc/codegen/testdata
failures=0

expect() {  # expect <what> <expected> <found>
  if [ "$2" != "$3" ]; then
    echo "$1: expected '$2', found '$3'"
    failures=$((failures + 1))
  fi
}

generate() {  # generate <out> <source directory> <file>
  mkdir -p "$1"
  "$protoc" "--plugin=protoc-gen-verbena=$plugin" "--verbena_out=$1" "-I$2" "$3" 2>&1
}

version_of() {  # version_of <version.h>
  awk '/^#define VERBENA_VERSION_[MP]/ { printf "%s%s", dot, $3; dot = "." }' "$1"
}

# By hand.
help=$("$plugin" --help)
expect "status of --help" 0 $?
expect "--help" "protoc-gen-verbena:" "${help%% *}"
version=$("$plugin" --version)
expect "status of --version" 0 $?
expect "--version" "protoc-gen-verbena $(version_of rpc/version.h)" "${version%%,*}"
message=$("$plugin" --verson 2>&1)
expect "status of an unknown argument" 1 $?
expect "an unknown argument" "protoc-gen-verbena: unknown argument '--verson'; see --help" "$message"

# Under protoc: the same bytes each time, with the comments of the source.
for run in 1 2; do
  expect "protoc, run $run" "" \
    "$(generate "$TEST_TMPDIR/$run" "$(dirname "$testdata")" testdata/comments.proto)"
  for kind in h cc; do
    cmp "$testdata/comments.verbena.pb.$kind.golden" \
      "$TEST_TMPDIR/$run/testdata/comments.verbena.pb.$kind" || failures=$((failures + 1))
  done
done

# A refusal makes protoc fail with one line, and nothing is written.
cat > "$TEST_TMPDIR/list.proto" <<'PROTO'
syntax = "proto3";
package p;
message M {}
service S { rpc List(M) returns (stream M); }
PROTO
message=$(generate "$TEST_TMPDIR/refused" "$TEST_TMPDIR" list.proto)
expect "status of protoc for a streaming method" 1 $?
expect "a streaming method" \
  "--verbena_out: list.proto: service p.S, method List: server streaming is not supported; unary methods (no 'stream' before request and reply) are" \
  "$message"
expect "files of a refused .proto" "" "$(ls "$TEST_TMPDIR/refused")"

[ "$failures" -eq 0 ]
