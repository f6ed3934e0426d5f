#!/usr/bin/env bash
# Builds grpc_bench, or the program that is named, with pkg-config. Not by Bazel, so that nothing else
# depends on gRPC. Prints the program's path. Exit status 3: gRPC is not installed.
#   build_grpc.sh [grpc_bench | grpc_payload_bench | grpc_stream_bench]
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
readonly top
readonly out=$top/.bazel/peers

plugin=$(command -v grpc_cpp_plugin) && pkg-config --exists grpc++ protobuf || exit 3

program=${1:-grpc_bench}
sources=("$top/benchmarks/peers/$program.cc"
  "$top"/benchmarks/harness/{cores,latency_histogram,options,report,server_process,stamps}.cc)
case $program in
  grpc_bench)
    proto='echo'
    sources+=("$top"/benchmarks/floor/floor{,_mapping}.cc)
    ;;
  grpc_payload_bench)
    proto=payload
    sources+=("$top"/benchmarks/floor/{copy_floor,payload_table}.cc)
    ;;
  grpc_stream_bench)
    proto=stream
    sources+=("$top"/benchmarks/{harness/stream_table,rpc/allocation_count}.cc)
    ;;
  *)
    echo "build_grpc.sh: there is no program '$program'" >&2
    exit 2
    ;;
esac
stamp=$(find "$top"/benchmarks/{peers,floor,harness} "$top"/benchmarks/rpc/allocation_count.* -type f -print0 | sort -z | xargs -0 cat |
  sha256sum)
if [ ! -x "$out/$program" ] || [ "$(cat "$out/$program.stamp" 2>/dev/null)" != "$stamp" ]; then
  mkdir -p "$out/include"
  ln -sfn "$top" "$out/include/verbena"  # headers are included as verbena/<folder>/<file>.h
  (cd "$top/benchmarks/peers" && protoc --cpp_out="$out" --grpc_out="$out" \
    --plugin="protoc-gen-grpc=$plugin" "$proto.proto")
  # shellcheck disable=SC2046  # lists of flags
  clang++-19 -std=c++20 -O2 -DNDEBUG -I"$out" -I"$out/include" -I"$top" \
    $(pkg-config --cflags grpc++ protobuf) "${sources[@]}" "$out/$proto.pb.cc" \
    "$out/$proto.grpc.pb.cc" -o "$out/$program" $(pkg-config --libs grpc++ protobuf absl_status absl_statusor) -lfmt -pthread
  echo "$stamp" >"$out/$program.stamp"
fi
echo "$out/$program"
