// A call without a deadline adds no read of the clock, since a read costs as much as a WR. A call
// with a deadline reads the clock.

#include "tests/rpc/testing_service.h"
#include "tests/support/manual_clock.h"
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
  Task<absl::StatusOr<Reads>> ReadsOf(int calls, bool with_deadline) {
    if (absl::Status status = co_await EchoOnce(0, "connects"); !status.ok()) co_return status;
    const Executor& executor = client_runtime_->executor(0);
    const uint64_t clock = clock_.reads();
    const uint64_t work = Work(executor.stats());
    testing::EchoRequest request;
    testing::EchoReply reply;
    const Deadline deadline = with_deadline ? Deadline(std::chrono::minutes(1)) : Deadline();
    for (int i = 0; i < calls; ++i) {
      absl::Status status = co_await stub_->Echo(request, reply, {.deadline = deadline});
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
  StartClient({.mode = ExecutorMode::kBusy, .clock = &clock_});
  absl::StatusOr<Reads> reads = Run(ReadsOf(kCalls, /*with_deadline=*/false));
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
