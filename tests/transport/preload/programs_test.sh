#!/usr/bin/env bash
# Runs the programs of ./dev soft --report on the soft device: the short table, or with --all the
# whole. Fails if one of those that are installed fails. What is not installed is printed.
set -euo pipefail

case $1 in
  --short) rows=(--short) ;;
  --all) rows=() ;;
  *) echo "programs_test: --short or --all, not '$1'" >&2; exit 2 ;;
esac
library=$(readlink -f "$2")
tools=$(dirname "$(readlink -f tools/dev/soft.py)")
VERBENA_SOFT_LIBRARY=$library exec python3 "$tools/soft.py" --report --verbose "${rows[@]}"
