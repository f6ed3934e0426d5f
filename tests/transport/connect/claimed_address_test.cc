// A peer that claims the GID of another address than it connects from is refused, if the two can be
// compared.

#include "verbena/transport/connect/peer.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <string>

namespace verbena::internal {
namespace claimed_address_test {

LinkParameters Offer(const std::string& gid, LinkKind kind = LinkKind::kRoce) {
  LinkParameters offer;
  offer.kind = kind;
  EXPECT_EQ(inet_pton(AF_INET6, gid.c_str(), offer.gid.data()), 1) << gid;
  return offer;
}

TEST(ClaimedAddressTest, AGidOfTheAddressThatThePeerConnectsFromIsItsOwn) {
  EXPECT_EQ(CheckClaimedAddress("10.0.0.1:4000", Offer("::ffff:10.0.0.1")), absl::OkStatus());
  EXPECT_EQ(CheckClaimedAddress("[::ffff:10.0.0.1]:4000", Offer("::ffff:10.0.0.1")),
            absl::OkStatus());
  EXPECT_EQ(CheckClaimedAddress("[2001:db8::1]:4000", Offer("2001:db8::1")), absl::OkStatus());
}

TEST(ClaimedAddressTest, AGidOfAnotherAddressOfTheSameFamilyIsRefusedWithBoth) {
  const absl::Status ipv4 = CheckClaimedAddress("10.0.0.1:4000", Offer("::ffff:10.0.0.2"));
  EXPECT_TRUE(absl::IsPermissionDenied(ipv4)) << ipv4;
  EXPECT_NE(ipv4.message().find("10.0.0.1:4000 claims the GID of 10.0.0.2"),
            absl::string_view::npos)
      << ipv4;
  const absl::Status tcp =
      CheckClaimedAddress("10.0.0.1:4000", Offer("::ffff:10.0.0.2", LinkKind::kTcp));
  EXPECT_TRUE(absl::IsPermissionDenied(tcp)) << tcp;
  // The same /64 is another host.
  const absl::Status ipv6 = CheckClaimedAddress("[2001:db8::1]:4000", Offer("2001:db8::2"));
  EXPECT_TRUE(absl::IsPermissionDenied(ipv6)) << ipv6;
}

TEST(ClaimedAddressTest, OverTcpNoPeerOfAnotherHostMakesTheServerConnectToItsOwn) {
  for (const char* claimed : {"::ffff:127.0.0.1", "::1", "::ffff:0.0.0.0", "::"}) {
    for (const char* peer : {"10.0.0.1:4000", "[2001:db8::1]:4000"}) {
      const absl::Status status = CheckClaimedAddress(peer, Offer(claimed, LinkKind::kTcp));
      EXPECT_TRUE(absl::IsPermissionDenied(status)) << peer << " " << claimed << " " << status;
    }
    EXPECT_EQ(CheckClaimedAddress("127.0.0.1:4000", Offer(claimed, LinkKind::kTcp)),
              absl::OkStatus());
  }
}

TEST(ClaimedAddressTest, AddressesThatCannotBeComparedPass) {
  const LinkParameters roce = Offer("::ffff:10.0.0.2");
  for (const char* peer : {"127.0.0.1:4000", "[::1]:4000", "[::ffff:127.0.0.1]:4000",
                           "[2001:db8::1]:4000", "[fe80::1%eth0]:4000", "store-0", "host:1", ""}) {
    EXPECT_EQ(CheckClaimedAddress(peer, roce), absl::OkStatus()) << peer;
  }
  EXPECT_EQ(CheckClaimedAddress("[2001:db8::1]:4000", Offer("fe80::2")), absl::OkStatus());
  for (const LinkKind kind :
       {LinkKind::kSoft, LinkKind::kInfiniBand, LinkKind::kIwarp, LinkKind::kRoceV1}) {
    EXPECT_EQ(CheckClaimedAddress("10.0.0.1:4000", Offer("::ffff:10.0.0.2", kind)),
              absl::OkStatus())
        << LinkKindName(kind);
  }
}

}  // namespace claimed_address_test
}  // namespace verbena::internal
