// Devices are tried in the right order: shared memory first on one host and last between hosts, and
// TCP behind RDMA.

#include "verbena/rpc/client/connection.h"

#include <vector>

#include "gtest/gtest.h"

namespace verbena::internal {
namespace connect_order_test {

using Order = std::vector<size_t>;
const std::vector<LinkKind> kAll = {LinkKind::kSoft, LinkKind::kInfiniBand, LinkKind::kRoce};
const std::vector<LinkKind> kTcpAmong = {LinkKind::kSoft, LinkKind::kTcp, LinkKind::kRoce};

TEST(ConnectOrderTest, OnOneHostSharedMemoryComesFirst) {
  EXPECT_EQ(ConnectOrder(kAll, true), (Order{0, 1, 2}));
  EXPECT_EQ(ConnectOrder({LinkKind::kRoce, LinkKind::kSoft}, true), (Order{1, 0}));
}

TEST(ConnectOrderTest, BetweenHostsTheSoftwareDeviceComesLast) {
  EXPECT_EQ(ConnectOrder(kAll, false), (Order{1, 2, 0}));
}

TEST(ConnectOrderTest, TcpComesBehindRdma) {
  EXPECT_EQ(ConnectOrder(kTcpAmong, true), (Order{0, 2, 1}));
  EXPECT_EQ(ConnectOrder(kTcpAmong, false), (Order{2, 1, 0}));
}

TEST(ConnectOrderTest, AnOnlyDeviceIsTriedWhereverThePeerIs) {
  EXPECT_EQ(ConnectOrder({LinkKind::kSoft}, false), (Order{0}));
  EXPECT_EQ(ConnectOrder({LinkKind::kRoce}, true), (Order{0}));
}

TEST(ConnectOrderTest, TheProofIsShortOnlyIfAnotherDeviceIsLeft) {
  const Order there = ConnectOrder(kTcpAmong, false);
  EXPECT_EQ(ProofTimeOf(0, there, kTcpAmong, false), kProofTime);
  EXPECT_EQ(ProofTimeOf(1, there, kTcpAmong, false), Duration::max()) << "soft is of no use there";
  const Order here = ConnectOrder(kTcpAmong, true);
  EXPECT_EQ(ProofTimeOf(1, here, kTcpAmong, true), kProofTime);
  EXPECT_EQ(ProofTimeOf(2, here, kTcpAmong, true), Duration::max());
}

}  // namespace connect_order_test
}  // namespace verbena::internal
