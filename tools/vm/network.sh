#!/usr/bin/env bash
# Brings up the guest's RDMA devices: network.sh SETTINGS, run by init on the host's root.
#
#   device=rxe|siw|none   devices=1|2   hosts=1|2   host=1|2   loss=PERCENT   delay=MS
#
# One device: on eth0 at 10.0.0.<host> (a dummy interface, or the cable to the other host). Two: on
# eth0 (10.0.0.1) and eth1 (10.0.0.2), the ends of a veth pair, and packets really cross it.
# SETTINGS sets these variables.
# shellcheck disable=SC1090,SC2154
set -euo pipefail
. "$1"
readonly mtu=9000

up() {
  ip link set "$1" mtu "$mtu" up
  ip addr add "$2/24" dev "$1"
  if [ "$loss" != 0 ] || [ "$delay" != 0 ]; then
    tc qdisc add dev "$1" root netem limit 10000 loss "$loss%" delay "${delay}ms"
  fi
}

# By default the kernel sends packets to its own addresses over lo. Here the local table comes last.
# Each end routes the other's address over its own interface, and accepts packets from its own host.
route_across() {
  local from=$1 to=$2 interface=$3 table=$4
  ip rule add pref 10 iif "$interface" lookup local
  ip route add "$to" dev "$interface" src "$from" table "$table"
  ip rule add pref 20 from "$from" to "$to" lookup "$table"
  ip rule add pref 30 oif "$interface" lookup "$table"
  echo 1 >"/proc/sys/net/ipv4/conf/$interface/accept_local"
  echo 0 >"/proc/sys/net/ipv4/conf/$interface/rp_filter"
}

ip link set lo up
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
if [ "$devices" = 2 ]; then
  ip link add eth0 type veth peer name eth1
  up eth0 10.0.0.1
  up eth1 10.0.0.2
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
  route_across 10.0.0.1 10.0.0.2 eth0 101
  route_across 10.0.0.2 10.0.0.1 eth1 102
  # Connecting a queue pair waits only a second for ARP, whose packets get lost, too.
  ip neigh add 10.0.0.2 dev eth0 lladdr "$(cat /sys/class/net/eth1/address)" nud permanent
  ip neigh add 10.0.0.1 dev eth1 lladdr "$(cat /sys/class/net/eth0/address)" nud permanent
  ip rule add pref 100 lookup local
  ip rule del pref 0
else
  [ "$hosts" = 2 ] || ip link add eth0 type dummy
  up eth0 "10.0.0.$host"
fi

if [ "$hosts" = 2 ] && [ "$host" = 1 ]; then
  for ((tries = 0; tries < 60; ++tries)); do
    ! busybox ping -c 1 -W 1 10.0.0.2 >/dev/null || break
  done
fi

[ "$device" != none ] || exit 0
for ((index = 0; index < devices; ++index)); do
  rdma link add "$device$index" type "$device" netdev "eth$index"
  # The port's state and GIDs follow the interface's by notifications; rxe's IPv4 address is its
  # second GID.
  port=/sys/class/infiniband/$device$index/ports/1
  for ((tries = 0; tries < 500; ++tries)); do
    if grep -q ACTIVE "$port/state" && { [ "$device" != rxe ] || grep -q :ffff: "$port/gids/1"; }; then
      break
    fi
    sleep 0.01
  done
done
