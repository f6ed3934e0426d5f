// Names are looked up on threads of their own: one that hangs delays no other, and who asks for it
// meanwhile shares its answer.

#include "verbena/transport/base/name_lookup.h"

#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/support/forbidden_call.h"
#include "verbena/transport/base/socket.h"

namespace verbena::internal {
namespace name_lookup_test {

// Heard: what the callbacks of a test were told.
struct Heard {
  std::atomic<int> count{0};
  std::atomic<int> looked_up{0};
  std::atomic<bool> answers{false};

  void Await(int wanted) const {
    for (int now = count; now < wanted; now = count) count.wait(now);
  }
  void Answer() {
    answers = true;
    answers.notify_all();
  }
};

class NameLookupsTest : public ::testing::Test {
 protected:
  // Threads may outlive the test.
  const std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
  NameLookups lookups_{[heard = heard_](const std::string& name) {
    ++heard->looked_up;
    if (name.starts_with("slow")) heard->answers.wait(false);
    return NameAnswer{.addresses = {SocketAddress(*ParseIp("10.0.0.7"), 0)}};
  }};
  const NameLookups::Done count_ = [heard = heard_](const NameAnswer& answer) {
    EXPECT_EQ(answer.addresses.size(), 1u);
    ++heard->count;
    heard->count.notify_all();
  };
};

TEST_F(NameLookupsTest, ANameThatHangsDelaysNoOther) {
  for (int i = 0; i < 2 * NameLookups::kMostThreads; ++i) lookups_.Start("slow", count_);
  lookups_.Start("quick", count_);
  heard_->Await(1);
  heard_->Answer();
  heard_->Await(2 * NameLookups::kMostThreads + 1);
  EXPECT_EQ(heard_->looked_up, 2) << "all share the answer";
  lookups_.Start("slow", count_);
  heard_->Await(2 * NameLookups::kMostThreads + 2);
  EXPECT_EQ(heard_->looked_up, 3) << "it is not kept";
}

TEST_F(NameLookupsTest, SeveralNamesThatHangDelayNoOther) {
  for (int i = 1; i < NameLookups::kMostThreads; ++i) {
    lookups_.Start("slow" + std::to_string(i), count_);
  }
  for (int i = 1; i <= 10; ++i) {
    lookups_.Start("quick" + std::to_string(i), count_);
    heard_->Await(i);
  }
  heard_->Answer();
  heard_->Await(10 + NameLookups::kMostThreads - 1);
}

TEST_F(NameLookupsTest, RefusesMoreThanMayWait) {
  constexpr int kMost = NameLookups::kMostWaiting;
  for (int i = 0; i < kMost; ++i) lookups_.Start("slow", count_);
  const auto code = std::make_shared<std::atomic<absl::StatusCode>>(absl::StatusCode::kOk);
  lookups_.Start("quick", [code](const NameAnswer& answer) { *code = answer.code; });
  EXPECT_EQ(*code, absl::StatusCode::kResourceExhausted);
  heard_->Answer();
  heard_->Await(kMost);
  lookups_.Start("quick", count_);
  heard_->Await(kMost + 1);
}

TEST_F(NameLookupsTest, SaysThatThereIsNoThread) {
  WithForbidden(SYS_clone3, EAGAIN, [this] {
    if (!Forbid(SYS_clone, EAGAIN)) return;
    absl::Status status;
    lookups_.Start("quick", [&](const NameAnswer& answer) { status = answer.status(); });
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  });
  lookups_.Start("quick", count_);
  heard_->Await(1);
}

TEST(SystemNamesTest, FindsNumericAddressesAndSaysWhatThereIsNot) {
  // Longer than a label may be, so that nobody is asked.
  for (const std::string& name : {std::string("127.0.0.1"), std::string(64, 'h')}) {
    const auto promise = std::make_shared<std::promise<NameAnswer>>();
    NameLookups::System().Start(
        name, [promise](const NameAnswer& answer) { promise->set_value(answer); });
    const NameAnswer found = promise->get_future().get();
    if (name.size() < 64) {
      ASSERT_EQ(found.addresses.size(), 1u) << found.why;
      EXPECT_EQ(found.addresses[0].host(), "127.0.0.1");
    } else {
      EXPECT_FALSE(found.status().ok());
      EXPECT_NE(found.why.find(name), std::string::npos) << found.why;
    }
  }
}

}  // namespace name_lookup_test
}  // namespace verbena::internal
