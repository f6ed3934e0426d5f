// A cable gets addresses that no address and no route of the host covers, and that no other process
// has. The host's own are those of a network namespace that the test makes.

#include "examples/block_store/cable_addresses.h"

#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <net/route.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/rpc/cable.h"
#include "tests/support/in_a_child.h"

namespace block_store {
namespace cable_addresses_test {

using verbena::SucceedsInAChild;
using verbena::internal::TurnOn;

constexpr uint32_t kFirst = 0xc0000200;  // 192.0.2.0

TEST(FreeNetworkTest, IsTheFirstIfNothingIsTaken) { EXPECT_EQ(FreeNetwork({}), kFirst); }

TEST(FreeNetworkTest, IsApartFromWhatCoversItInPartOrInWhole) {
  const auto after = [](std::vector<AddressRange> taken) { return FreeNetwork(taken).value_or(0); };
  EXPECT_EQ(after({{kFirst + 2, kFirst + 2}}), kFirst + 4);
  EXPECT_EQ(after({{kFirst + 3, kFirst + 4}}), kFirst + 8);
  EXPECT_EQ(after({{kFirst + 4, kFirst + 255}}), kFirst);
  EXPECT_EQ(after({{kFirst, kFirst + 255}}), 0xc6336400) << "198.51.100.0";
  EXPECT_EQ(after({{kFirst, 0xc6336403}}), 0xc6336404) << "198.51.100.4";
  EXPECT_EQ(after({{0xc6336400, 0xcfffffff}, {kFirst, kFirst + 255}}), 0xc6120000) << "198.18.0.0";
}

TEST(FreeNetworkTest, IsNoneIfAllIsTaken) {
  // As two routes take that lead everything into a tunnel.
  EXPECT_FALSE(FreeNetwork(std::vector<AddressRange>{{0, 0x7fffffff}, {0x80000000, 0xffffffff}}));
}

bool EnterOwnNetwork() {
  return unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
}

// Through `lo`, which must have the gateway's network. A prefix of 0 bits is the default route.
bool AddRoute(int socket, uint32_t network, uint32_t mask) {
  char device[] = "lo";
  rtentry route{};
  for (sockaddr* address : {&route.rt_dst, &route.rt_genmask}) address->sa_family = AF_INET;
  reinterpret_cast<sockaddr_in&>(route.rt_dst).sin_addr.s_addr = htonl(network);
  reinterpret_cast<sockaddr_in&>(route.rt_genmask).sin_addr.s_addr = htonl(mask);
  route.rt_flags = RTF_UP;
  route.rt_dev = device;
  return ioctl(socket, SIOCADDRT, &route) == 0;
}

// Whether a host whose network `set_up` has made gets that near address.
bool ClaimsIn(const std::function<bool(int socket)>& set_up, const std::string& near) {
  return SucceedsInAChild([&] {
    if (!EnterOwnNetwork()) return false;
    const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (!set_up(socket)) return false;
    const absl::StatusOr<std::unique_ptr<CableAddresses>> cable = CableAddresses::Claim();
    return cable.ok() && (*cable)->near() == near;
  });
}

class CableAddressesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!SucceedsInAChild(EnterOwnNetwork)) GTEST_SKIP() << "may make no network namespace";
  }
};

TEST_F(CableAddressesTest, ABareHostGivesTheFirst) {
  EXPECT_TRUE(ClaimsIn([](int) { return true; }, "192.0.2.1"));
}

TEST_F(CableAddressesTest, TheHostsOwnAddressIsNotTaken) {
  EXPECT_TRUE(ClaimsIn([](int socket) { return TurnOn(socket, "lo", kFirst + 2); }, "192.0.2.5"));
}

TEST_F(CableAddressesTest, ARouteIsNotTakenButADefaultOneIsNoRouteInTheWay) {
  EXPECT_TRUE(ClaimsIn(
      [](int socket) {
        return TurnOn(socket, "lo", 0x0a000001) && AddRoute(socket, 0, 0) &&
               AddRoute(socket, 0x80000000, 0x80000000) && AddRoute(socket, kFirst, 0xffffff00);
      },
      "198.51.100.1"));
}

TEST_F(CableAddressesTest, TwoClaimsOfOneHostDiffer) {
  EXPECT_TRUE(SucceedsInAChild([] {
    if (!EnterOwnNetwork()) return false;
    absl::StatusOr<std::unique_ptr<CableAddresses>> first = CableAddresses::Claim();
    absl::StatusOr<std::unique_ptr<CableAddresses>> second = CableAddresses::Claim();
    if (!first.ok() || !second.ok()) return false;
    if ((*first)->far() != "192.0.2.2" || (*second)->far() != "192.0.2.6") return false;
    first->reset();
    first = CableAddresses::Claim();
    return first.ok() && (*first)->near() == "192.0.2.1";
  }));
}

TEST_F(CableAddressesTest, AHostWithoutAFreeNetworkSaysSo) {
  EXPECT_TRUE(SucceedsInAChild([] {
    if (!EnterOwnNetwork()) return false;
    const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (!TurnOn(socket, "lo", 0x0a000001)) return false;
    for (const uint32_t network : {0xc0000000, 0xc6000000, 0xcb000000}) {
      if (!AddRoute(socket, network, 0xff000000)) return false;
    }
    const absl::Status status = CableAddresses::Claim().status();
    return status.code() == absl::StatusCode::kNotFound &&
           std::string(status.message()).find("198.18.0.0/15") != std::string::npos;
  }));
}

}  // namespace cable_addresses_test
}  // namespace block_store
