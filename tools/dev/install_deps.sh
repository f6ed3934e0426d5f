#!/usr/bin/env bash
# Installs the Debian packages of packages.txt that are missing. Asks apt only when one is.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
readonly here

usage() {
  cat <<'TEXT'
usage: ./dev install-deps [--arm64] [--deb] [--observe] [--peers] [--plots] [--soft] [--toolchains] [--vm] [--quiet] [group...]

Installs the Debian packages of tools/dev/packages.txt that are missing; groups: arm64, build, lint,
deb, observe, peers, plots, python, soft, toolchains, upgrade, vm (default: build and lint). Works as root,
or through sudo.

  --arm64       also install what ./dev arm64 needs: CMake, Ninja, QEMU's user mode
  --deb         also install what builds and tests Debian packages: debhelper, lintian, mmdebstrap
  --observe     also install Prometheus, for ./dev demo observed and the tests of alert rules; where systemd runs,
                the package starts one at port 9090
  --peers       also install what the benchmarks compare with: gRPC C++ and UCX
  --plots       also install what draws plots of benchmarks: matplotlib
  --soft        also install the programs of ./dev soft --report: perftest, UCX, libfabric, pyverbs
  --toolchains  also install what ./dev toolchains needs: mmdebstrap
  --vm          also install what ./dev vm needs: QEMU, verbs' programs, and what builds siw
  --quiet       say nothing when nothing is missing
TEXT
}

die() {
  echo "dev install-deps: $*" >&2
  exit 1
}

groups=() extra=() quiet=false
for argument in "$@"; do
  case $argument in
    --deb) extra+=(deb) ;;
    --arm64) extra+=(arm64) ;;
    --observe) extra+=(observe) ;;
    --peers) extra+=(peers) ;;
    --plots) extra+=(plots) ;;
    --soft) extra+=(soft) ;;
    --toolchains) extra+=(toolchains) ;;
    --vm) extra+=(vm) ;;
    --quiet) quiet=true ;;
    -h | --help) usage; exit 0 ;;
    arm64 | build | lint | deb | observe | peers | plots | python | soft | toolchains | upgrade | vm) groups+=("$argument") ;;
    *) echo "dev install-deps: unknown argument '$argument'; see --help" >&2; exit 2 ;;
  esac
done
[ ${#groups[@]} -gt 0 ] || groups=(build lint)
groups+=("${extra[@]}")

wanted=()
while read -r group package _; do
  for each in "${groups[@]}"; do
    [ "$group" != "$each" ] || wanted+=("$package")
  done
done <"$here/packages.txt"

if ! command -v dpkg-query >/dev/null; then
  $quiet || echo "This is not a Debian system. Install the equivalents of: ${wanted[*]}" >&2
  exit 0  # Bazel names what it cannot find.
fi

installed=$(dpkg-query -W -f='${db:Status-Abbrev}${Package}\n' "${wanted[@]}" 2>/dev/null |
  sed -n 's/^ii *//p' || true)
missing=$(comm -13 <(sort -u <<<"$installed") <(printf '%s\n' "${wanted[@]}" | sort -u))
if [ -z "$missing" ]; then
  $quiet || echo "Everything is installed."
  exit 0
fi

missing=$(tr '\n' ' ' <<<"$missing")
readonly advice="apt-get install --no-install-recommends $missing"
as_root=(env DEBIAN_FRONTEND=noninteractive)
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || die "packages are missing, and there is no sudo. As root: $advice"
  as_root=(sudo "${as_root[@]}")
fi
echo "Installing: $missing" >&2
"${as_root[@]}" apt-get update -q >&2 || echo "dev install-deps: apt-get update failed; going on" >&2
# shellcheck disable=SC2086  # a list of words
"${as_root[@]}" apt-get install -q -y --no-install-recommends $missing >&2 ||
  die "apt-get failed. As root, on Debian 12: $advice"
