#include "verbena/transport/link/qp_setup.h"

#include "gtest/gtest.h"

namespace verbena {
namespace {

PortAddress InfiniBandPort(uint64_t prefix) {
  PortAddress address{.lid = 7, .kind = LinkKind::kInfiniBand};
  address.gid.global.subnet_prefix = prefix;
  return address;
}

RemoteQp InfiniBandPeer(uint64_t prefix, uint16_t lid) {
  RemoteQp remote{.lid = lid};
  remote.gid.global.subnet_prefix = prefix;
  return remote;
}

TEST(QpSetupTest, RoceAlwaysRoutesByGid) {
  PortAddress local = InfiniBandPort(1);
  local.kind = LinkKind::kRoce;
  EXPECT_TRUE(NeedsGlobalRoute(local, InfiniBandPeer(1, 9)));
}

TEST(QpSetupTest, InfiniBandRoutesByLidWithinItsSubnetAndByGidBeyondIt) {
  EXPECT_FALSE(NeedsGlobalRoute(InfiniBandPort(1), InfiniBandPeer(1, 9)));
  EXPECT_TRUE(NeedsGlobalRoute(InfiniBandPort(1), InfiniBandPeer(2, 9)));
}

TEST(QpSetupTest, APortThatDemandsItOrAPeerWithoutLidNeedsTheGlobalRoute) {
  PortAddress demanding = InfiniBandPort(1);
  demanding.grh_required = true;
  EXPECT_TRUE(NeedsGlobalRoute(demanding, InfiniBandPeer(1, 9)));
  EXPECT_TRUE(NeedsGlobalRoute(InfiniBandPort(1), InfiniBandPeer(1, 0)));
}

TEST(QpSetupTest, PortsOfDifferentMtuAreToldInOneLineAndEqualOnesInNone) {
  const PortAddress local{.active_mtu = IBV_MTU_4096, .kind = LinkKind::kRoce};
  EXPECT_EQ(DescribePathMtu(local, 1024), "path MTU 1024: the port has 4096 here, 1024 there");
  EXPECT_EQ(DescribePathMtu(local, 4096), "");
  const PortAddress iwarp{.active_mtu = IBV_MTU_4096, .kind = LinkKind::kIwarp};
  EXPECT_EQ(DescribePathMtu(iwarp, 1024), "");
}

}  // namespace
}  // namespace verbena
