#!/usr/bin/env bash
# Rewrites the golden files that the code generator's tests compare with.
set -euo pipefail

case ${1:-} in
  "") ;;
  *)
    echo "usage: ./dev golden"
    echo
    echo "Rewrites tests/rpc/codegen/testdata/*.golden from what protoc-gen-verbena generates now. Read"
    echo "the diff before you commit it."
    [ "$1" = -h ] || [ "$1" = --help ] || exit 2
    exit 0
    ;;
esac

cd "$VERBENA_TOP"
tools/dev/bazel.sh run //tests/rpc/codegen:update_golden -- "$VERBENA_TOP"
git --no-pager diff --stat -- tests/rpc/codegen
