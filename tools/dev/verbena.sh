#!/usr/bin/env bash
# Builds the verbena tool and runs it.
set -euo pipefail

case ${1:-} in
  "" | -h | --help)
    cat <<'TEXT'
usage: ./dev verbena COMMAND [arguments]

Builds the command verbena, and runs it: call, list, describe, health, bench, doctor, selftest. It works in
the directory in which ./dev runs. `./dev verbena help` lists its commands, and `./dev verbena COMMAND
--help` the arguments of one.
TEXT
    [ -n "${1:-}" ] || exit 2
    exit 0
    ;;
esac

(
  cd "$VERBENA_TOP"
  tools/dev/bazel.sh build --config=opt --show_result=0 --ui_event_filters=-info --noshow_progress \
    //tools/verbena
) >&2
exec "$VERBENA_TOP/.bazel/bin/tools/verbena/verbena" "$@"
