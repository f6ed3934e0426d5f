#!/usr/bin/env bash
# Runs a command in a root of toolchain_root.py. Starts as the first process of namespaces of mounts and of processes,
# so that all that is mounted here leaves with it.
set -euo pipefail

if [ $# -lt 6 ]; then
  echo "usage: toolchain_enter.sh ROOT TREE BUILDS CCACHE PROTOBUF|- COMMAND [ARGUMENT...]" >&2
  exit 2
fi
root=$1 tree=$2 builds=$3 ccache=$4 protobuf=$5
shift 5

mount --make-rprivate /
# Commands do not change the root, nor the tree that they build.
mount --bind -o ro "$root" "$root"
mount --bind -o ro "$tree" "$root/verbena"
mount --bind "$builds" "$root/builds"
mount --bind "$ccache" "$root/ccache"
[ "$protobuf" = - ] || mount --bind -o ro "$protobuf" "$root/protobuf"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
for name in tmp run root var/tmp; do
  mount -t tmpfs -o mode=1777 tmpfs "$root/$name"
done
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero full random urandom tty; do
  touch "$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"

# bash stays the first process: it collects processes that lose their parents, as tests expect.
# shellcheck disable=SC2016  # for the bash inside
exec chroot "$root" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/usr/sbin HOME=/root LANG=C.UTF-8 \
  TERM="${TERM:-dumb}" CCACHE_DIR=/ccache VERBENA_TOP=/verbena PYTHONDONTWRITEBYTECODE=1 \
  /bin/bash -c 'cd /builds; "$@"; exit $?' bash "$@"
