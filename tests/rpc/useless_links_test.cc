// A connection counts the links in a row that are lost before they are of use. It replaces the
// first of them at once, and pauses before it replaces each later one. A link that was of use ends
// the row: the server has answered a call over it, or has sent something of a stream.

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/rpc/abandonable.h"
#include "tests/rpc/open_link.h"
#include "tests/rpc/stream_service.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {
namespace useless_links_test {

using std::chrono::milliseconds;

class UselessLinksTest : public StreamTest {
 protected:
  // No time passes for the client unless the test moves its clock.
  void SetUp() override { Start({}, {}, {.clock = &clock_}); }
  void TearDown() override {
    clock_.Run();
    stub_.reset();
    channel_.reset();
    client_runtime_.reset();
  }

  absl::Status Connect() { return Run(channel_->Connect()); }
  // The channel's link is lost.
  void LoseLink() { EXPECT_EQ(Run(CloseLink()), absl::OkStatus()); }
  void LoseUselessLink() {
    ASSERT_EQ(Connect(), absl::OkStatus());
    LoseLink();
  }

  Task<absl::Status> CloseLink() { co_return CloseLinkOf(*client_runtime_); }

  // The row has `lost` links by now. The channel makes the next one after `pause`, give or take a
  // fifth, and says until then why it makes none.
  void ExpectPause(int lost, Duration pause) {
    const absl::Status refused = Connect();
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
    const std::string reason =
        absl::StrCat("loses each link before it answers a call, ", lost, " by now");
    EXPECT_NE(refused.message().find(reason), std::string::npos) << refused;
    clock_.Advance(*client_runtime_, pause * 4 / 5 - milliseconds(1));
    EXPECT_TRUE(absl::IsUnavailable(Connect())) << "too early";
    clock_.Advance(*client_runtime_, pause * 2 / 5 + milliseconds(1));
    EXPECT_EQ(Connect(), absl::OkStatus());
  }

  testing::FakeClock clock_;
};

TEST_F(UselessLinksTest, OnlyTheFirstInARowIsReplacedAtOnce) {
  LoseUselessLink();
  LoseUselessLink();
  ExpectPause(2, Connection::kInitialBackoff);
  LoseLink();
  ExpectPause(3, 2 * Connection::kInitialBackoff);
}

// A call and a stream are on the way, and the server works on both.
TEST_F(UselessLinksTest, ACallOrStreamThatWaitsForItsAnswerIsNoUse) {
  const auto hold = [this]() -> Task<absl::Status> {
    co_return (co_await stub_->Hold(ItemOf(1))).status();
  };
  const auto lose_link_of = [this](Task<absl::Status> waiting) -> Task<absl::Status> {
    const Abandonable one(client_runtime_->executor(0), std::move(waiting));
    while (service_.running == 0) (void)co_await Yield();
    VERBENA_CO_RETURN_IF_ERROR(co_await CloseLink());
    while (!one.ended() || service_.running != 0) (void)co_await Yield();
    co_return absl::OkStatus();
  };
  const auto ignore = [this]() -> Task<absl::Status> {
    ClientReaderWriter<Item, Item> stream = stub_->Ignore();
    co_return co_await stream.Finish();
  };
  EXPECT_EQ(Run(lose_link_of(hold())), absl::OkStatus());
  EXPECT_EQ(Run(lose_link_of(ignore())), absl::OkStatus());
  ExpectPause(2, Connection::kInitialBackoff);
}

TEST_F(UselessLinksTest, AfterALinkOfUseThePausesAreShortAgain) {
  LoseUselessLink();
  LoseUselessLink();
  ExpectPause(2, Connection::kInitialBackoff);
  LoseLink();
  ExpectPause(3, 2 * Connection::kInitialBackoff);
  ASSERT_EQ(Run(SayOnce()), absl::OkStatus());
  LoseLink();
  LoseUselessLink();
  LoseUselessLink();
  ExpectPause(2, Connection::kInitialBackoff);
}

enum class Use { kCall, kStreamsEnd, kStreamsMessage };

class LinkOfUseTest : public UselessLinksTest, public ::testing::WithParamInterface<Use> {
 protected:
  Task<absl::Status> UseLink() {
    switch (GetParam()) {
      case Use::kCall:
        co_return co_await SayOnce();
      case Use::kStreamsEnd:
        // Without messages: its response is all that comes.
        co_return co_await CountOf(0, 0);
      case Use::kStreamsMessage:
        co_return co_await ReadOneMessage();
    }
    co_return absl::InternalError("there is no such use");
  }

 private:
  // The stream is given up before its response.
  Task<absl::Status> ReadOneMessage() {
    ClientReaderWriter<Item, Item> stream = stub_->Echo();
    VERBENA_CO_RETURN_IF_ERROR(co_await stream.Write(ItemOf(1)));
    Item item;
    VERBENA_CO_ASSIGN_OR_RETURN(const bool has_message, co_await stream.TryRead(item));
    co_return has_message ? absl::OkStatus() : absl::DataLossError("no message");
  }
};

TEST_P(LinkOfUseTest, EndsTheRow) {
  LoseUselessLink();
  ASSERT_EQ(Run(UseLink()), absl::OkStatus());
  LoseLink();
  ASSERT_EQ(Connect(), absl::OkStatus()) << "the lost link was of use";
  LoseLink();
  EXPECT_EQ(Connect(), absl::OkStatus()) << "the lost link was the first of a row";
}

INSTANTIATE_TEST_SUITE_P(All, LinkOfUseTest,
                         ::testing::Values(Use::kCall, Use::kStreamsEnd, Use::kStreamsMessage),
                         [](const auto& info) {
                           switch (info.param) {
                             case Use::kCall:
                               return std::string("ACall");
                             case Use::kStreamsEnd:
                               return std::string("AStreamsEnd");
                             default:
                               return std::string("AStreamsMessage");
                           }
                         });

}  // namespace useless_links_test
}  // namespace verbena::internal
