#!/usr/bin/env bash
# Builds the verbena tool and runs its doctor.
set -euo pipefail

case ${1:-} in
  -h | --help)
    cat <<'TEXT'
usage: ./dev doctor [--container]

Lists what this machine has for RDMA: devices, ports, GIDs, limits, features, and what of the system
bears on them; which wire two processes of this host take, and why; and for everything wrong the
command that mends it. Exit status 0: RDMA works, or there
is no device and the soft device works. 1: a device is there that does not work, or nothing works.

  --container   also what a container or unit takes from a process: io_uring, memory, cores, users
TEXT
    exit 0
    ;;
  "" | --container) ;;
  *) echo "dev doctor: there is no argument '$1'" >&2; exit 2 ;;
esac

cd "$VERBENA_TOP"
tools/dev/bazel.sh build --config=opt --show_result=0 --ui_event_filters=-info --noshow_progress \
  //tools/verbena
exec .bazel/bin/tools/verbena/verbena doctor "$@"
