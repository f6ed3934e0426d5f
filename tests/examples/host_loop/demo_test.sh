#!/usr/bin/env bash
# The example greets through its own epoll loop, and ends by itself.
set -euo pipefail

output=$(timeout 50 examples/host_loop/host_loop)
for i in 1 2 3 4 5; do
  grep -q "^Hello, host $i!$" <<<"$output" || { echo "no greeting $i in: $output" >&2; exit 1; }
done
grep -q "^The host's own timer rang [0-9]* times meanwhile.$" <<<"$output"
