// The choice of a GID prefers RoCE v2, then routable addresses, then IPv4, unless the user says
// otherwise. It never takes a GID of another namespace or one that no address handle can name. On
// RoCE a GID is of this namespace if an interface here has its address; the index of an interface
// proves nothing.

#include "verbena/transport/verbs/port.h"

#include <net/if.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/verbs/ports.h"

namespace verbena::internal {
namespace gid_choice_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

int Chosen(const PortInfo& port, const GidWish& wish = {}) {
  absl::StatusOr<GidInfo> gid = ChooseGid(port, wish);
  EXPECT_TRUE(gid.ok()) << gid.status();
  return gid.ok() ? gid->index : -1;
}

TEST(GidChoiceTest, RoceV2IsPreferredThoughV1ComesFirst) {
  EXPECT_EQ(Chosen(RocePort("mlx5_0", "eth0", {"10.0.0.1"})), 1);
}

TEST(GidChoiceTest, ARoutableAddressIsPreferredToALinkLocalOne) {
  EXPECT_EQ(Chosen(RocePort("mlx5_0", "eth0", {"fe80::1", "10.0.0.1"})), 3);
  EXPECT_EQ(Chosen(RocePort("mlx5_0", "eth0", {"fe80::1", "2001:db8::1"})), 3);
}

TEST(GidChoiceTest, TheTypeWeighsMoreThanTheAddress) {
  PortInfo port = RocePort("mlx5_0", "eth0", {"10.0.0.1", "fe80::1"});
  port.gids.erase(port.gids.begin() + 1);  // 10.0.0.1 as v2
  EXPECT_EQ(Chosen(port), 3);
}

TEST(GidChoiceTest, Ipv4IsPreferredToIpv6AndThenTheLowestIndex) {
  EXPECT_EQ(Chosen(RocePort("mlx5_0", "eth0", {"2001:db8::1", "10.0.0.1", "10.0.0.2"})), 3);
}

TEST(GidChoiceTest, ALinkLocalAddressIsBetterThanNone) {
  EXPECT_EQ(Chosen(RocePort("mlx5_0", "eth0", {"fe80::1"})), 1);
}

TEST(GidChoiceTest, AnotherNamespacesGidIsNeverChosen) {
  PortInfo port = RocePort("mlx5_0", "eth0", {"10.0.0.1", "10.0.0.2"});
  port.gids[0].other_namespace = port.gids[1].other_namespace = true;
  EXPECT_EQ(Chosen(port), 3);
  port.gids[2].other_namespace = port.gids[3].other_namespace = true;
  const absl::Status status = ChooseGid(port).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("another network namespace"));
}

TEST(GidChoiceTest, TheUsersWishOutweighsEveryPreference) {
  PortInfo port = RocePort("mlx5_0", "eth0", {"10.0.0.1", "fe80::1"});
  EXPECT_EQ(Chosen(port, {.index = 0}), 0);
  EXPECT_EQ(Chosen(port, {.address = Gid("fe80::1")}), 3);
  port.gids[2].netdev = port.gids[3].netdev = "eth0.100";
  EXPECT_EQ(Chosen(port, {.netdev = "eth0.100"}), 3);
}

TEST(GidChoiceTest, AnIndexOutOfRangeIsNamedWithTheGidsThatThereAre) {
  const absl::Status status =
      ChooseGid(RocePort("mlx5_0", "eth0", {"10.0.0.1"}), {.index = 7}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("mlx5_0 port 1"), HasSubstr("index 7"),
                    HasSubstr("0: 10.0.0.1 RoCE v1, 1: 10.0.0.1 RoCE v2")));
}

TEST(GidChoiceTest, AnIndexThatNoAddressHandleCanNameIsNeverChosen) {
  PortInfo port = RocePort("mlx5_0", "eth0", {"fe80::1", "10.0.0.1"});
  port.gids[2].index = 256;
  port.gids[3].index = 257;
  EXPECT_EQ(Chosen(port), 1);
  EXPECT_EQ(ChooseGid(port, {.index = 257}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(GidChoiceTest, InfiniBandsDefaultGidServesThoughItIsLinkLocalAndHasNoInterface) {
  EXPECT_EQ(Chosen(InfiniBandPort("mlx5_0", 1)), 0);
}

TEST(GidChoiceTest, APortWithoutGidsSaysSo) {
  PortInfo port = RocePort("mlx5_0", "eth0", {});
  EXPECT_THAT(std::string(ChooseGid(port).status().message()), HasSubstr("its GIDs: none"));
}

// A GID of the interface with that index, as the kernel lists it.
ibv_gid_entry Entry(const std::string& address, unsigned interface) {
  ibv_gid_entry entry{};
  entry.gid = Gid(address);
  entry.gid_index = 3;
  entry.gid_type = IBV_GID_TYPE_ROCE_V2;
  entry.ndev_ifindex = interface;
  return entry;
}

IpAddress Address(const std::string& text) { return std::to_array(Gid(text).raw); }

class ReadGidTest : public ::testing::Test {
 protected:
  // An interface that every namespace has.
  const unsigned interface_ = if_nametoindex("lo");
  const std::vector<IpAddress> here_ = {Address("127.0.0.1"), Address("10.0.0.1")};
};

TEST_F(ReadGidTest, ARoceGidIsOfThisNamespaceIfAnInterfaceHereHasItsAddress) {
  const GidInfo ours = ReadGid(Entry("10.0.0.1", interface_), PortLink::kEthernet, here_);
  EXPECT_FALSE(ours.other_namespace);
  EXPECT_EQ(ours.netdev, "lo");
  EXPECT_EQ(ours.index, 3);
  EXPECT_EQ(ours.type, GidType::kRoceV2);
}

TEST_F(ReadGidTest, AnInterfaceWithTheSameIndexDoesNotMakeARoceGidOurs) {
  const GidInfo foreign = ReadGid(Entry("10.0.0.2", interface_), PortLink::kEthernet, here_);
  EXPECT_TRUE(foreign.other_namespace);
  EXPECT_EQ(foreign.netdev, "");
}

TEST_F(ReadGidTest, AnAddressDoesNotMakeARoceGidWithoutAnInterfaceOurs) {
  EXPECT_TRUE(ReadGid(Entry("10.0.0.1", 0), PortLink::kEthernet, here_).other_namespace);
}

TEST_F(ReadGidTest, WithoutAListOfAddressesTheInterfaceDecides) {
  EXPECT_FALSE(ReadGid(Entry("10.0.0.2", interface_), PortLink::kEthernet, {}).other_namespace);
  EXPECT_TRUE(ReadGid(Entry("10.0.0.2", 0), PortLink::kEthernet, {}).other_namespace);
}

TEST_F(ReadGidTest, InfiniBandAndIwarpHaveNoGidsOfOtherNamespaces) {
  for (const PortLink link : {PortLink::kInfiniBand, PortLink::kIwarp}) {
    EXPECT_FALSE(ReadGid(Entry("fe80::1", 0), link, here_).other_namespace);
  }
}

TEST_F(ReadGidTest, TheInterfacesGiveTheirAddressesAndTheDefaultGidsOfTheirHardware) {
  EXPECT_EQ(DefaultGid({0x52, 0x54, 0, 0x12, 0x34, 0x56}), Address("fe80::5054:ff:fe12:3456"));
  const std::vector<IpAddress> gids = GidsOfInterfaces();
  for (const IpAddress& each : HostAddresses(/*reachable=*/false)) {
    EXPECT_THAT(gids, ::testing::Contains(each)) << FormatIp(each);
  }
}

}  // namespace gid_choice_test
}  // namespace verbena::internal
