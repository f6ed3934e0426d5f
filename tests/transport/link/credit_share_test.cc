// The links to one source address borrow no more of their endpoint's credits than they leave free
// for others, and take none from an address that has fewer.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/transport/link/links_fixture.h"
#include "tests/transport/link/stream_to.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/link/credits.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace credit_share_test {

// The client receives, and so issues the credits: its links are to servers of several addresses.
class CreditShareTest : public LinksFixture {
 protected:
  static constexpr uint32_t kInitialCredits = 8;
  static constexpr uint32_t kLinks = 10;
  static constexpr uint32_t kPool = 128;
  static constexpr uint32_t kFrames = 20000;
  // More than any test waits for.
  static constexpr uint32_t kWithoutEnd = 1'000'000'000;

  void SetUp() override {
    LinkLimits limits;
    limits.max_links = kLinks;
    limits.initial_credits = kInitialCredits;
    limits.srq_depth = kLinks * (kInitialCredits + kReserveCredits) + kRepostBatch + kPool;
    limits.eager_bytes = 1024;
    Start(limits, limits);
  }
  std::unique_ptr<MessageStream> WrapClientStream(std::unique_ptr<MessageStream> stream) override {
    return std::make_unique<StreamTo>(std::move(stream), source_);
  }

  // A link to a server at `source`. Returns the client's end; accepted() is the server's.
  Link* ConnectTo(const std::string& source) {
    source_ = source;
    return Connect(receivers_.emplace_back(), server_listener_);
  }
  // The same, and the server sends so many frames over it.
  Link* FloodFrom(const std::string& source, uint32_t frames = kFrames) {
    Link* link = ConnectTo(source);
    if (link == nullptr) return nullptr;
    floods_.push_back(std::make_unique<Flood>(frames, 512));
    floods_.back()->Run(***accepted());
    return link;
  }
  // Until the last link has brought a quarter of its frames: the most that was borrowed meanwhile.
  uint32_t MostBorrowed() {
    uint32_t most = 0;
    PollUntil([&] { return receivers_.back().received() >= kFrames / 4; },
              [&] { most = std::max(most, client().stats().credits_borrowed); });
    return most;
  }

 private:
  std::string source_;
  Receiver server_listener_;
  std::deque<Receiver> receivers_;
  std::vector<std::unique_ptr<Flood>> floods_;
};

TEST_F(CreditShareTest, FourLinksToOneAddressLeaveHalfOfThePool) {
  ASSERT_NE(ConnectTo("rack-8"), nullptr);
  for (int i = 0; i < 4; ++i) ASSERT_NE(FloodFrom("rack-7"), nullptr);
  const uint32_t most = MostBorrowed();
  EXPECT_GT(most, kPool / 4) << "they did want credits";
  EXPECT_LE(most, kPool / 2);
}

TEST_F(CreditShareTest, TheOnlyAddressBorrowsMoreThanHalf) {
  for (int i = 0; i < 4; ++i) ASSERT_NE(FloodFrom("rack-7"), nullptr);
  EXPECT_GT(MostBorrowed(), kPool / 2);
}

// The pool is empty when the second address comes. A link that sends all the time may have nothing
// to return when it is asked: its SENDs free the credits.
TEST_F(CreditShareTest, AnAddressThatComesLaterGetsCreditsOfTheFirst) {
  for (int i = 0; i < 4; ++i) ASSERT_NE(FloodFrom("rack-7", kWithoutEnd), nullptr);
  PollUntil([&] { return client().stats().credits_borrowed == kPool; });
  const Link* late = FloodFrom("rack-8", kWithoutEnd);
  ASSERT_NE(late, nullptr);
  PollUntil([&] { return late->receives_held() > 2 * kInitialCredits + kReserveCredits; });
}

TEST_F(CreditShareTest, ALostLinkIsNotAskedForItsCredits) {
  Link* link = FloodFrom("rack-7", kWithoutEnd);
  ASSERT_NE(link, nullptr);
  const IntrusiveNode<RecallableLink>& may_be_asked = *link;
  PollUntil([&] { return may_be_asked.linked(); });
  link->Close(absl::UnavailableError("the test closes it"));
  // The endpoint frees it later.
  EXPECT_FALSE(may_be_asked.linked());
}

}  // namespace credit_share_test
}  // namespace verbena::internal
