#!/usr/bin/env bash
# The plugin answers a user by hand, and works under protoc: with parameters, beside another plugin,
# and with one line for each .proto that it refuses. plugin_test.sh <protoc-gen-verbena> <protoc>
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
service S { rpc delete(M) returns (M); rpc delete_(M) returns (M); }
PROTO
message=$(generate "$TEST_TMPDIR/refused" "$TEST_TMPDIR" list.proto)
expect "status of protoc for methods of one C++ name" 1 $?
expect "methods of one C++ name" \
  "--verbena_out: list.proto:4:40: service p.S, method delete_: its C++ name delete_ is also that of method delete; rename one" \
  "$message"
expect "files of a refused .proto" "" "$(ls "$TEST_TMPDIR/refused")"

# Parameters arrive. An unknown one is refused with the known ones.
cat > "$TEST_TMPDIR/get.proto" <<'PROTO'
syntax = "proto3";
package p;
message M {}
service S { rpc Get(M) returns (M); }
PROTO
mkdir "$TEST_TMPDIR/mocks" "$TEST_TMPDIR/unknown"
expect "generate_mock_code" "" "$("$protoc" "--plugin=protoc-gen-verbena=$plugin" \
  "--verbena_out=generate_mock_code=true:$TEST_TMPDIR/mocks" "-I$TEST_TMPDIR" get.proto 2>&1)"
expect "files with generate_mock_code" "get.verbena.pb.cc get.verbena.pb.h get_mock.verbena.pb.h" \
  "$(cd "$TEST_TMPDIR/mocks" && echo *)"
message=$("$protoc" "--plugin=protoc-gen-verbena=$plugin" --verbena_opt=lite \
  "--verbena_out=$TEST_TMPDIR/unknown" "-I$TEST_TMPDIR" get.proto 2>&1)
expect "an unknown parameter" \
  "--verbena_out: protoc-gen-verbena: unknown parameter 'lite'; known are export_macro=NAME, generate_mock_code=true, services_namespace=NAME" \
  "$message"

# Another plugin may add code at insertion points, as this one does: it answers with one file of
# CodeGeneratorResponse. Each string is shorter than 128 bytes.
field() {  # field <tag> <text>
  printf '%b%b%s' "\\x$1" "$(printf '\\x%02x' "${#2}")" "$2"
}
for point in includes namespace_scope global_scope class_scope:p.S class_scope:p.S.Stub \
  class_scope:p.S.StubInterface class_scope:p.S.Service; do
  file="$(field 0a get.verbena.pb.h)$(field 12 "$point")$(field 7a "// Added at $point.")"
  printf '#!/usr/bin/env bash\ncat > /dev/null\ncat "%s"\n' "$TEST_TMPDIR/response" \
    > "$TEST_TMPDIR/adder"
  field 7a "$file" > "$TEST_TMPDIR/response"
  chmod +x "$TEST_TMPDIR/adder"
  rm -rf "$TEST_TMPDIR/added" && mkdir "$TEST_TMPDIR/added"
  expect "protoc with a plugin that adds at $point" "" \
    "$("$protoc" "--plugin=protoc-gen-verbena=$plugin" \
      "--plugin=protoc-gen-adder=$TEST_TMPDIR/adder" "--verbena_out=$TEST_TMPDIR/added" \
      "--adder_out=$TEST_TMPDIR/added" "-I$TEST_TMPDIR" get.proto 2>&1)"
  grep -q -B1 -F "// Added at $point." "$TEST_TMPDIR/added/get.verbena.pb.h"
  expect "code added at $point" 0 $?
done

# The installed protoc knows no editions.
echo 'edition = "2023"; package p; message M {} service S { rpc Get(M) returns (M); }' \
  > "$TEST_TMPDIR/edition.proto"
message=$(generate "$TEST_TMPDIR/edition" "$TEST_TMPDIR" edition.proto)
expect "status of protoc for an edition" 1 $?
grep -q "^edition.proto:1:1: " <<< "$message"
expect "an edition is refused by its place" 0 $?

[ "$failures" -eq 0 ]
