#!/usr/bin/env bash
# The example reads every block out of the cache's memory, and ends by itself.
set -euo pipefail

output=$(timeout 50 examples/own_memory/own_memory)
grep -q "^256 blocks of 65536 bytes read$" <<<"$output" || { echo "it said: $output" >&2; exit 1; }
