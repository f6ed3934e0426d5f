// Deadlines follow the executor's clock exactly. Only the test moves that clock here.

#include <atomic>

#include "tests/rpc/testing_service.h"
#include "tests/support/manual_clock.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/executor/executor.h"

namespace verbena {
namespace deadline_clock_test {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

class DeadlineClockTest : public RpcTest {
 protected:
  void SetUp() override {
    StartServer();
    StartClient({.mode = ExecutorMode::kBusy, .clock = &clock_});
    ASSERT_TRUE(Run(EchoOnce(1, "connects")).ok());
  }

  Task<absl::Status> Wait(Deadline deadline, std::atomic<bool>& ended) {
    testing::WaitRequest request;
    testing::Empty reply;
    absl::Status status = co_await stub_->Wait(request, reply, {.deadline = deadline});
    ended = true;
    co_return status;
  }

  Task<absl::Status> EchoWithoutDeadline() {
    testing::EchoRequest request;
    co_return (co_await stub_->Echo(request, {.deadline = Deadline::None()})).status();
  }

  // Moves the clock while a call waits: by a little less than its deadline, then by the rest.
  void ExpectFiresAt(Duration delay, Deadline deadline) {
    std::atomic<bool> ended = false;
    absl::Status status;
    std::thread caller([&] { status = Run(Wait(deadline, ended)); });
    while (service_.waiting == 0) std::this_thread::yield();
    clock_.Advance(delay - nanoseconds(1));
    // The executor reads its clock once a turn, and may have read it before the move: then a call
    // with the channel's deadline would start at the former time, and be too late.
    EXPECT_EQ(Run(EchoWithoutDeadline()), absl::OkStatus());
    // The executor looks at its timers many times meanwhile.
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(Run(EchoOnce(i, "not yet")).ok());
    EXPECT_FALSE(ended);
    clock_.Advance(nanoseconds(1));
    caller.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    while (service_.waiting != 0) std::this_thread::yield();
  }

  // Far from the machine's clock, so that a mixture of the two is seen.
  ManualClock clock_{TimePoint(hours(24 * 365 * 200))};
};

TEST_F(DeadlineClockTest, ADurationFiresExactlyWhenTheExecutorsClockSaysSo) {
  ExpectFiresAt(hours(1), hours(1));
}

TEST_F(DeadlineClockTest, ATimePointFiresExactlyWhenTheExecutorsClockSaysSo) {
  // The server's clock runs on, and must not come to the deadline first.
  const Duration delay = hours(1) + milliseconds(1500);
  ExpectFiresAt(delay, clock_.Now() + delay);
}

TEST_F(DeadlineClockTest, ACallThatGivesNoDeadlineHasThatOfItsChannel) {
  channel_ = std::make_unique<Channel>(*client_runtime_, server_->address(),
                                       ChannelOptions{.default_deadline = hours(1)});
  stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  ASSERT_TRUE(Run(EchoOnce(1, "connects")).ok());
  ExpectFiresAt(hours(1), {});
  ExpectFiresAt(hours(2), hours(2));
  const auto left = [this](Deadline deadline) -> Task<absl::StatusOr<testing::DeadlineReply>> {
    co_return co_await stub_->Deadline(testing::Empty(), {.deadline = deadline});
  };
  EXPECT_TRUE(Run(left({}))->is_set());
  EXPECT_FALSE(Run(left(Deadline::None()))->is_set());
}

TEST_F(DeadlineClockTest, TheLongestDurationIsNoDeadline) {
  testing::EchoRequest request;
  const auto call = [&]() -> Task<absl::Status> {
    co_return (co_await stub_->Echo(request, {.deadline = hours::max()})).status();
  };
  EXPECT_EQ(Run(call()), absl::OkStatus());
}

TEST_F(DeadlineClockTest, ADurationCountsFromTheCallsStart) {
  const CallOptions made_early = {.deadline = hours(1)};
  clock_.Advance(hours(2));
  // The executor reads its clock once a turn, and may have read it before the move: then the call
  // would start at the former time.
  ASSERT_EQ(Run(EchoOnce(1, "takes more than a turn")), absl::OkStatus());
  testing::EchoRequest request;
  const auto call = [&]() -> Task<absl::Status> {
    co_return (co_await stub_->Echo(request, {.deadline = made_early.deadline})).status();
  };
  EXPECT_EQ(Run(call()), absl::OkStatus());
}

using DeadlineDeathTest = ::testing::Test;

TEST_F(DeadlineDeathTest, AskingADurationForItsTimeAborts) {
  EXPECT_DEATH((void)Deadline(hours(1)).when(), "no time before its call starts");
}

}  // namespace deadline_clock_test
}  // namespace verbena
