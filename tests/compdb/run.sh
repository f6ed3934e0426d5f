#!/usr/bin/env bash
# Proves that clangd reads three files without an error by what ./dev compdb writes.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."

./dev compdb
# A file of the data path, one that uses generated code, and a public header.
for file in transport/link/link.cc tests/rpc/unary_test.cc rpc/server.h; do
  if ! clangd-19 --check="$file" --check-lines=1-1 --clang-tidy=0 --log=error >.compdb.log 2>&1; then
    cat .compdb.log
    rm -f .compdb.log
    echo "tests/compdb: clangd finds errors in $file" >&2
    exit 1
  fi
  rm -f .compdb.log
done
echo "tests/compdb: passed"
