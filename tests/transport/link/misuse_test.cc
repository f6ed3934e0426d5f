// Misuse of a link that is visible in the program aborts, and the message says what was done.

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace misuse_test {

class MisuseDeathTest : public LinksFixture {
 protected:
  void SetUp() override {
    testing::FLAGS_gtest_death_test_style = "fast";
    Start({}, {});
    link_ = Connect(client_listener_, server_listener_);
    ASSERT_NE(link_, nullptr);
  }

  // The executor keeps a thread-free state, but the device has a thread: a closed link stays until
  // the test polls.
  void CloseLink() { link_->Close(absl::CancelledError("the test ends it")); }

  Receiver client_listener_;
  Receiver server_listener_;
  Link* link_ = nullptr;
};

class IdleWaiter final : public SendWaiter {
 public:
  void OnWritable(Link&) override {}
};

TEST_F(MisuseDeathTest, AppendingToAClosedLinkAborts) {
  CloseLink();
  EXPECT_DEATH(link_->Append({}, 0), "open\\(\\)");
}

TEST_F(MisuseDeathTest, ABodyLargerThanAFrameAborts) {
  EXPECT_DEATH(link_->Append({}, link_->max_body_bytes() + 1), "body_bytes <= max_body_bytes");
}

TEST_F(MisuseDeathTest, WaitingOnAClosedLinkAborts) {
  CloseLink();
  IdleWaiter waiter;
  EXPECT_DEATH(link_->AwaitWritable(waiter), "open\\(\\)");
}

TEST_F(MisuseDeathTest, WaitingTwiceAborts) {
  IdleWaiter waiter;
  EXPECT_DEATH(
      {
        link_->AwaitWritable(waiter);
        link_->AwaitWritable(waiter);
      },
      "waits already");
}

TEST_F(MisuseDeathTest, AnEmptyTransferAborts) {
  EXPECT_DEATH(link_->StartTransfer(Transfer::Direction::kWrite, {}, {}, nullptr),
               "an empty transfer");
}

TEST_F(MisuseDeathTest, AnAtomicOperationOnAnOddAddressAborts) {
  if (!device().capabilities().atomics) GTEST_SKIP() << "the device has no atomic operations";
  EXPECT_DEATH(link_->StartAtomic({}, {.address = 4, .bytes = 8, .rkey = 1}, nullptr),
               "remote.address % 8 == 0");
}

}  // namespace misuse_test
}  // namespace verbena::internal
