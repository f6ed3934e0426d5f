// A client connects its TCP wire to the address that the server announces, unless only the address
// of the bootstrap connection can be right; and a connection is beyond loopback only if its peer
// has an address that says so.

#include "verbena/transport/connect/peer.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

namespace verbena::internal {
namespace peer_address_test {

using Gid = std::array<uint8_t, 16>;

Gid GidOf(const std::string& address) {
  Gid gid{};
  EXPECT_EQ(inet_pton(AF_INET6, address.c_str(), gid.data()), 1) << address;
  return gid;
}

TEST(PeerAddressTest, AnAddressThatTheServerAnnouncesIsTaken) {
  for (const char* peer : {"10.0.0.1:4000", "[2001:db8::1]:4000", "127.0.0.1:4000", "store-0"}) {
    EXPECT_EQ(ReachableAddress(GidOf("::ffff:192.168.7.2"), peer), GidOf("::ffff:192.168.7.2"))
        << peer;
    EXPECT_EQ(ReachableAddress(GidOf("2001:db8::7"), peer), GidOf("2001:db8::7")) << peer;
  }
}

TEST(PeerAddressTest, AnAnnouncedLoopbackAddressGivesWayToThatOfTheBootstrap) {
  for (const char* announced :
       {"::", "::1", "::ffff:0.0.0.0", "::ffff:127.0.0.1", "::ffff:127.200.3.4"}) {
    EXPECT_EQ(ReachableAddress(GidOf(announced), "10.0.0.1:4000"), GidOf("::ffff:10.0.0.1"))
        << announced;
    EXPECT_EQ(ReachableAddress(GidOf(announced), "[2001:db8::1]:4000"), GidOf("2001:db8::1"))
        << announced;
  }
}

TEST(PeerAddressTest, ABootstrapThatTellsNothingBetterChangesNothing) {
  for (const char* peer : {"127.0.0.1:4000", "[::1]:4000", "[::ffff:127.0.0.1]:4000", "[::]:4000",
                           "[fe80::1%eth0]:4000", "store-0", "host:1", ""}) {
    EXPECT_EQ(ReachableAddress(GidOf("::1"), peer), GidOf("::1")) << peer;
    EXPECT_FALSE(IsBeyondLoopback(peer)) << peer;
  }
  EXPECT_TRUE(IsBeyondLoopback("10.0.0.1:4000"));
  EXPECT_TRUE(IsBeyondLoopback("[2001:db8::1]:4000"));
}

}  // namespace peer_address_test
}  // namespace verbena::internal
