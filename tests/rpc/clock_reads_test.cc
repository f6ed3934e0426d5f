// A call without a deadline adds no read of the clock, since a read costs as much as a WR. A call
// with a deadline reads the clock. Counted calls share readings: one for each poll that found
// something, and one for a few calls that begin.

#include "tests/rpc/testing_service.h"
#include "tests/support/manual_clock.h"
#include "verbena/rpc/task.h"
#include "verbena/transport/base/ticks.h"
#include "verbena/transport/executor/executor.h"

namespace verbena {
namespace clock_reads_test {

// The work that an executor counts towards its next look at the timers, one in 16.
uint64_t Work(const ExecutorStats& stats) {
  return stats.turns + stats.completions + stats.resumed + stats.inbox_items;
}

class ClockReadsTest : public RpcTest {
 protected:
  struct Reads {
    uint64_t clock = 0;
    uint64_t for_timers = 0;  // at most
  };

  // Between the first and the last of `calls`, on the client's executor.
  Task<absl::StatusOr<Reads>> ReadsOf(int calls, bool with_deadline,
                                      Priority priority = Priority::kNormal) {
    if (absl::Status status = co_await EchoOnce(0, "connects"); !status.ok()) co_return status;
    const Executor& executor = client_runtime_->executor(0);
    const uint64_t clock = clock_.reads();
    const uint64_t work = Work(executor.stats());
    testing::EchoRequest request;
    testing::EchoReply reply;
    const Deadline deadline = with_deadline ? Deadline(std::chrono::minutes(1)) : Deadline();
    for (int i = 0; i < calls; ++i) {
      absl::Status status =
          co_await stub_->Echo(request, reply, {.deadline = deadline, .priority = priority});
      if (!status.ok()) co_return status;
    }
    co_return Reads{clock_.reads() - clock, (Work(executor.stats()) - work) / 16 + 1};
  }

  ManualClock clock_;
};

// The client keeps its core busy, so each call may cost the server a time slice of the system.
constexpr int kCalls = 500;
constexpr uint64_t kOfOthers = 100;  // liveness, and what else the runtime does meanwhile

TEST_F(ClockReadsTest, ACallWithoutADeadlineAddsNoReadOfTheClock) {
  StartServer();
  StartClient({.mode = ExecutorMode::kBusy, .clock = &clock_, .metrics = false});
  absl::StatusOr<Reads> reads = Run(ReadsOf(kCalls, /*with_deadline=*/false));
  ASSERT_TRUE(reads.ok()) << reads.status();
  EXPECT_LE(reads->clock, reads->for_timers + kOfOthers);
}

TEST_F(ClockReadsTest, CountedCallsThatBeginTogetherShareReadings) {
  StartServer();
  StartClient({.mode = ExecutorMode::kBusy, .clock = &clock_});
  constexpr uint64_t kAtOnce = 64;
  // All begin in one turn of the executor.
  const auto reads = [this]() -> Task<absl::StatusOr<uint64_t>> {
    if (absl::Status status = co_await EchoOnce(0, "connects"); !status.ok()) co_return status;
    uint64_t before = 0;
    uint64_t after = 0;
    TaskScope calls(co_await CurrentContext());
    calls.Spawn([&]() -> Task<void> {
      before = clock_.reads();
      co_return;
    });
    for (uint64_t i = 0; i < kAtOnce; ++i) {
      calls.Spawn([&]() -> Task<void> { (void)co_await EchoOnce(1, "data"); });
    }
    calls.Spawn([&]() -> Task<void> {
      after = clock_.reads();
      co_return;
    });
    co_await calls.Join();
    co_return after - before;
  };
  const absl::StatusOr<uint64_t> read = Run(reads());
  ASSERT_TRUE(read.ok()) << read.status();
  // One more is the turn's own time.
  EXPECT_LE(*read, kAtOnce / internal::TurnTicks::kSharers + 1);
  EXPECT_GE(*read, 1u) << "the calls are timed";
}

TEST_F(ClockReadsTest, ACountedCallReadsOnceToBeginAndOnceForEachPollThatFoundSomething) {
  StartServer();
  StartClient({.mode = ExecutorMode::kBusy, .clock = &clock_});
  const uint64_t completions = client_runtime_->executor(0).stats().completions;
  absl::StatusOr<Reads> reads = Run(ReadsOf(kCalls, /*with_deadline=*/false));
  ASSERT_TRUE(reads.ok()) << reads.status();
  const uint64_t polls = client_runtime_->executor(0).stats().completions - completions;
  EXPECT_LE(reads->clock, reads->for_timers + kOfOthers + kCalls + polls);
}

// Its end is found later than its beginning is read.
TEST_F(ClockReadsTest, ACountedCallWithAContextReadsNoMoreOften) {
  StartServer();
  StartClient({.mode = ExecutorMode::kBusy, .clock = &clock_});
  const uint64_t completions = client_runtime_->executor(0).stats().completions;
  absl::StatusOr<Reads> reads = Run(ReadsOf(kCalls, /*with_deadline=*/false, Priority::kControl));
  ASSERT_TRUE(reads.ok()) << reads.status();
  const uint64_t polls = client_runtime_->executor(0).stats().completions - completions;
  EXPECT_LE(reads->clock, reads->for_timers + kOfOthers + kCalls + polls);
}

TEST_F(ClockReadsTest, ACallWithAContextThatIsNotCountedAddsNoReadOfTheClock) {
  StartServer();
  StartClient({.mode = ExecutorMode::kBusy, .clock = &clock_, .metrics = false});
  absl::StatusOr<Reads> reads = Run(ReadsOf(kCalls, /*with_deadline=*/false, Priority::kControl));
  ASSERT_TRUE(reads.ok()) << reads.status();
  EXPECT_LE(reads->clock, reads->for_timers + kOfOthers);
}

TEST_F(ClockReadsTest, ACallWithADeadlineReadsTheClock) {
  StartServer();
  StartClient({.mode = ExecutorMode::kBusy, .clock = &clock_});
  absl::StatusOr<Reads> reads = Run(ReadsOf(kCalls, /*with_deadline=*/true));
  ASSERT_TRUE(reads.ok()) << reads.status();
  EXPECT_GE(reads->clock, static_cast<uint64_t>(kCalls));
}

}  // namespace clock_reads_test
}  // namespace verbena
