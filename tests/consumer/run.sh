#!/usr/bin/env bash
# Builds and runs a workspace that uses Verbena from outside, as a user's does.
set -euo pipefail

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")"
../../tools/dev/bazel.sh test --test_output=errors //...
