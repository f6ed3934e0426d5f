// A queue pair takes the global route exactly if its link needs one, differing MTUs are told in one
// line, a soft device with a LID is one over TCP, and packet sequence numbers differ between the
// processes of a fork.

#include "verbena/transport/link/qp.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/transport/device/fake_device.h"

namespace verbena::internal {
namespace qp_setup_test {

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

// A soft device whose port has the LID that the test gives it.
class DeviceWithLid final : public FakeDevice {
 public:
  explicit DeviceWithLid(uint16_t lid) : lid_(lid) {}
  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t) override {
    ibv_port_attr port = {};
    port.state = IBV_PORT_ACTIVE;
    port.lid = lid_;
    return port;
  }
  absl::StatusOr<ibv_gid> QueryGid(uint8_t, int) override { return ibv_gid{}; }

 private:
  const uint16_t lid_;
};

TEST(QpSetupTest, TheSoftDeviceWithALidIsTheOneOverTcp) {
  DeviceWithLid shared_memory(0);
  EXPECT_EQ(ReadPortAddress(shared_memory, {}, {})->kind, LinkKind::kSoft);
  DeviceWithLid tcp(4791);
  const absl::StatusOr<PortAddress> address = ReadPortAddress(tcp, {}, {});
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->kind, LinkKind::kTcp);
  EXPECT_EQ(address->lid, 4791) << "the port that the handshake announces";
  EXPECT_TRUE(NeedsGlobalRoute(*address, RemoteQp{.lid = 4792})) << "the address is the GID";
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

TEST(QpSetupTest, SidesOfDifferentMtuAreToldInOneLineAndEqualOnesInNone) {
  const PortAddress local{.path_mtu = IBV_MTU_4096, .kind = LinkKind::kRoce};
  EXPECT_EQ(DescribePathMtu(local, 1024), "path MTU 1024: it is 4096 here, 1024 there");
  EXPECT_EQ(DescribePathMtu(local, 4096), "");
  const PortAddress iwarp{.path_mtu = IBV_MTU_4096, .kind = LinkKind::kIwarp};
  EXPECT_EQ(DescribePathMtu(iwarp, 1024), "");
  const PortAddress tcp{.path_mtu = IBV_MTU_4096, .kind = LinkKind::kTcp};
  EXPECT_EQ(DescribePathMtu(tcp, 1024), "");
}

// A generator of our own goes on in both processes where it was at the fork; whoever sees some of
// its numbers knows the next.
TEST(PsnTest, NumbersAreTheKernelsAndNotOfAGeneratorThatAForkCopies) {
  EXPECT_LE(NewPsn() | NewPsn() | NewPsn(), 0xffffffu);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  for (int i = 0; i < 2; ++i) {
    if (fork() == 0) {
      const uint32_t numbers[4] = {NewPsn(), NewPsn(), NewPsn(), NewPsn()};
      _exit(write(pipes[1], numbers, sizeof(numbers)) == sizeof(numbers) ? 0 : 1);
    }
    int status = -1;
    ASSERT_GT(wait(&status), 0);
    ASSERT_EQ(status, 0);
  }
  uint32_t first[4];
  uint32_t second[4];
  ASSERT_EQ(read(pipes[0], first, sizeof(first)), static_cast<ssize_t>(sizeof(first)));
  ASSERT_EQ(read(pipes[0], second, sizeof(second)), static_cast<ssize_t>(sizeof(second)));
  EXPECT_NE(std::memcmp(first, second, sizeof(first)), 0);
  close(pipes[0]);
  close(pipes[1]);
}

}  // namespace qp_setup_test
}  // namespace verbena::internal
