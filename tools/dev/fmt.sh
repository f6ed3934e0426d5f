#!/usr/bin/env bash
# Formats the C++ sources and schemas that git tracks, or will.
set -euo pipefail
cd "$VERBENA_TOP"

case ${1:-} in
  "") ;;
  -h | --help)
    echo "usage: ./dev fmt [file...]"
    echo
    echo "Formats the given C++ files, or all that git tracks or would add, with clang-format-19."
    exit 0
    ;;
esac

if [ $# -gt 0 ]; then
  exec clang-format-19 -i "$@"
fi
git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cc' |
  xargs -0 --no-run-if-empty ls -d 2>/dev/null | tr '\n' '\0' |
  xargs -0 --no-run-if-empty -n 32 -P "$(nproc)" clang-format-19 -i
