#!/usr/bin/env bash
# Runs in a Debian where Verbena's packages are installed: uses each, purges all, and fails if a
# file is left.
set -euo pipefail
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
cd "$(dirname "${BASH_SOURCE[0]}")"
readonly packages=(libverbena1 libverbena-dev verbena-tools libverbena-soft)

die() {
  echo "packages: $*" >&2
  exit 1
}

says_hello() {
  local said
  said=$("$1") || die "$1 failed"
  [ "$said" = "Hello, storage!" ] || die "$1 said '$said'"
}

echo "packages: the README's program, by CMake"
cmake -S hello -B by-cmake -G Ninja -DCMAKE_CXX_COMPILER=clang++-19
cmake --build by-cmake
says_hello by-cmake/hello

echo "packages: the README's program, by pkg-config"
mkdir by-pkg-config
protoc -I hello -I /usr/include --cpp_out=by-pkg-config --verbena_out=by-pkg-config \
  examples/hello/hello.proto
read -ra flags <<<"$(pkg-config --cflags --libs verbena)"
clang++-19 -I by-pkg-config hello/examples/hello/hello.cc by-pkg-config/examples/hello/*.cc \
  "${flags[@]}" -o by-pkg-config/program
says_hello by-pkg-config/program

echo "packages: the command and the preloaded library"
verbena --help >/dev/null || die "verbena --help failed"
LD_PRELOAD=libverbena_soft.so ibv_devices | grep soft0 >/dev/null || die "ibv_devices shows no soft0"

echo "packages: purge"
dpkg -L "${packages[@]}" | grep -vx /. | sort -u >owned
apt-get purge -q -y "${packages[@]}"
while read -r path; do
  # A folder may belong to other packages, too.
  if [ -e "$path" ] && ! dpkg -S "$path" >/dev/null 2>&1; then
    die "left after the purge: $path"
  fi
done <owned
left=$(find / -xdev -path "$PWD" -prune -o -path /proc -prune -o -iname '*verbena*' -print)
[ -z "$left" ] || die "left after the purge: $left"
