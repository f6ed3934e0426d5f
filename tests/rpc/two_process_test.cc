// Calls between two processes over the shared-memory wire bring back every byte right, and none
// runs twice. Calls to a server that is killed or frozen end, and its successor is found.

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/server_process.h"
#include "tests/rpc/testing_service.h"
#include "tests/support/held_port.h"
#include "tests/support/moved_clock.h"
#include "verbena/transport/coro/scope.h"

namespace verbena {
namespace {

class TwoProcessTest : public RpcTest {
 protected:
  TwoProcessTest() : process_(std::make_unique<ServerProcess<TestingService>>(port_.address())) {}
  ~TwoProcessTest() override {
    stub_.reset();
    channel_.reset();
    client_runtime_.reset();
  }

  void StartClient(RuntimeOptions options = {}) {
    client_runtime_ = StartRuntime(std::move(options));
    channel_ = std::make_unique<Channel>(*client_runtime_, process_->address());
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  }

  // Starts `count` calls that the server never answers, then `strike`; returns how each ended. From
  // the strike on, the client's clock is ahead by `step` more each millisecond.
  template <typename Strike>
  std::vector<absl::Status> CallsStruckBy(int count, Strike strike,
                                          Duration step = Duration::zero()) {
    std::vector<absl::Status> ended(count);
    auto run = [&]() -> Task<absl::Status> {
      TaskScope scope(client_runtime_->executor(0));
      for (int i = 0; i < count; ++i) {
        scope.Spawn([this, &ended, i]() -> Task<void> {
          testing::WaitRequest request;
          testing::Empty reply;
          ended[i] = co_await stub_->Wait(request, reply);
        });
      }
      // An answered call behind them: the others have arrived.
      absl::Status echoed = co_await EchoOnce(1, "marker");
      strike();
      while (step > Duration::zero() && scope.size() > 0) {
        clock_.Advance(step);
        VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
      }
      co_await scope.Join();
      co_return echoed;
    };
    EXPECT_EQ(Run(run()), absl::OkStatus());
    return ended;
  }

  MovedClock clock_;  // a client's
  const HeldPort port_;
  std::unique_ptr<ServerProcess<TestingService>> process_;
};

TEST_F(TwoProcessTest, EveryReplyByteIsRight) {
  StartClient();
  for (int i = 0; i < 500; ++i) {
    ASSERT_EQ(Run(EchoOnce(i, std::string(i * 8, static_cast<char>(i)))), absl::OkStatus());
  }
}

TEST_F(TwoProcessTest, CallsInFlightAllEndAndNoneIsRunTwice) {
  StartClient();
  constexpr uint64_t kCalls = 2000;
  std::vector<absl::Status> ended(kCalls, absl::UnknownError("not ended"));
  testing::CountReply count;
  auto run = [&]() -> Task<absl::Status> {
    TaskScope scope(client_runtime_->executor(0));
    for (uint64_t i = 0; i < kCalls; ++i) {
      scope.Spawn([this, &ended, i]() -> Task<void> {
        ended[i] = co_await EchoOnce(i, std::string(i % 1500, static_cast<char>(i)));
      });
    }
    co_await scope.Join();
    testing::Empty request;
    co_return co_await stub_->Count(request, count);
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  for (const absl::Status& status : ended) EXPECT_EQ(status, absl::OkStatus());
  EXPECT_EQ(count.echoes(), kCalls);
}

TEST_F(TwoProcessTest, AKilledServerEndsItsCallsAsMaybeExecuted) {
  StartClient();
  for (const absl::Status& status : CallsStruckBy(100, [this] { process_->Kill(); })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  }
}

TEST_F(TwoProcessTest, AnotherServerTakesAKilledOnesPlaceAtOnce) {
  StartClient();
  ASSERT_EQ(Run(EchoOnce(1, "first")), absl::OkStatus());
  process_->Kill();
  EXPECT_FALSE(Run(EchoOnce(2, "nobody")).ok());
  channel_.reset();
  client_runtime_.reset();
  process_ = std::make_unique<ServerProcess<TestingService>>(port_.address());
  StartClient();
  EXPECT_EQ(Run(EchoOnce(3, "second")), absl::OkStatus());
}

TEST_F(TwoProcessTest, AFrozenServerIsNoticedByItsSilenceAndServesAgainWhenItGoesOn) {
  LinkLimits limits;
  limits.ping_interval = std::chrono::hours(1);
  limits.idle_timeout = Duration::zero();
  StartClient({.limits = limits, .clock = &clock_});
  for (const absl::Status& status :
       CallsStruckBy(3, [this] { process_->Signal(SIGSTOP); }, limits.ping_interval / 2)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  }
  process_->Signal(SIGCONT);
  Eventually([this] { return Run(EchoOnce(2, "again")).ok(); }, "the channel comes back");
}

}  // namespace
}  // namespace verbena
