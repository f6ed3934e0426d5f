// A source holds no more than is left for all others, so that none takes all. What it gives back is
// there for the next one, and addresses of one range are one source.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "verbena/transport/base/socket.h"
#include "verbena/transport/soft/tcp_shares.h"
#include "verbena/transport/soft/tcp_wire.h"

namespace verbena::internal::soft {
namespace tcp_shares_test {

using Kind = TcpShares::Kind;

IpAddress Ip(const std::string& text) { return ParseIp(text).value(); }

// As many of 16 peers as `source` gets.
std::vector<TcpShares::Share> TakeAll(TcpShares& shares, const std::string& source) {
  std::vector<TcpShares::Share> taken;
  while (true) {
    auto share = shares.Take(Ip(source), {{.kind = Kind::kPeers, .limit = 16}});
    if (!share.ok()) return taken;
    taken.push_back(*std::move(share));
  }
}

TEST(TcpSharesTest, EachSourceTakesAHalfOfWhatIsLeft) {
  TcpShares shares;
  const auto first = TakeAll(shares, "192.0.2.1");
  const auto second = TakeAll(shares, "192.0.2.2");
  const auto third = TakeAll(shares, "192.0.2.3");
  EXPECT_EQ(first.size(), 8u);
  EXPECT_EQ(second.size(), 4u);
  EXPECT_EQ(third.size(), 2u);
}

// A pair of completion queues takes 2 MiB: a thousand clients with four executors each need 8 GiB.
TEST(TcpSharesTest, LargeMachineHasRingsForManyClients) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  EXPECT_EQ(LaneBytesOf(2 * kGiB), 4 * kGiB);
  EXPECT_EQ(LaneBytesOf(16 * kGiB), 4 * kGiB);
  EXPECT_EQ(LaneBytesOf(64 * kGiB), 16 * kGiB);
}

TEST(TcpSharesTest, ReturnedSharesMayBeTakenAgain) {
  TcpShares shares;
  auto first = TakeAll(shares, "192.0.2.1");
  first.clear();
  EXPECT_EQ(TakeAll(shares, "192.0.2.2").size(), 8u);
}

TEST(TcpSharesTest, ReturnedSharesMayBeTakenAgainWhileAnotherHoldsSome) {
  TcpShares shares;
  const auto kept = shares.Take(Ip("192.0.2.1"), {{.kind = Kind::kPeers, .limit = 16}}).value();
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(TakeAll(shares, "192.0.2.2").size(), 7u) << round;
  }
}

TEST(TcpSharesTest, ShareMayOutliveTheBounds) {
  TcpShares::Share kept;
  {
    TcpShares shares;
    kept = shares.Take(Ip("192.0.2.1"), {{.kind = Kind::kPeers, .limit = 16}}).value();
  }
  kept.reset();
}

TEST(TcpSharesTest, RangeOfIpv6AddressesIsOneSource) {
  TcpShares shares;
  const auto first = TakeAll(shares, "2001:db8:0:1::1");
  EXPECT_EQ(first.size(), 8u);
  EXPECT_EQ(TakeAll(shares, "2001:db8:0:1:ffff::2").size(), 0u);
  EXPECT_EQ(TakeAll(shares, "2001:db8:0:2::1").size(), 4u);
}

TEST(TcpSharesTest, RefusalTakesNothingAndSaysWhatIsHeld) {
  TcpShares shares;
  const IpAddress source = Ip("192.0.2.1");
  const auto bytes =
      shares.Take(source, {{.kind = Kind::kLaneBytes, .amount = 400, .limit = 1000}}).value();
  const auto refused =
      shares.Take(source, {{.kind = Kind::kSockets, .limit = 2},
                           {.kind = Kind::kLaneBytes, .amount = 200, .limit = 1000}});
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  const std::string text(refused.status().message());
  EXPECT_NE(text.find("192.0.2.1 holds 400 of 1000 bytes"), std::string::npos) << text;
  // The socket that was to go with the bytes is free.
  EXPECT_TRUE(shares.Take(source, {{.kind = Kind::kSockets, .limit = 2}}).ok());
}

TEST(TcpSharesTest, EachCqHasLanesOfItsOwn) {
  TcpShares shares;
  const IpAddress source = Ip("192.0.2.1");
  const auto one = shares.Take(source, {{.kind = Kind::kLanes, .limit = 2, .cq = 1}});
  EXPECT_TRUE(one.ok());
  EXPECT_FALSE(shares.Take(source, {{.kind = Kind::kLanes, .limit = 2, .cq = 1}}).ok());
  EXPECT_TRUE(shares.Take(source, {{.kind = Kind::kLanes, .limit = 2, .cq = 2}}).ok());
}

TEST(TcpSharesTest, MoreThanThereIsIsRefusedWhoeverAsks) {
  TcpShares shares;
  EXPECT_FALSE(
      shares.Take(Ip("192.0.2.1"), {{.kind = Kind::kLaneBytes, .amount = ~uint64_t{0}, .limit = 8}})
          .ok());
}

}  // namespace tcp_shares_test
}  // namespace verbena::internal::soft
