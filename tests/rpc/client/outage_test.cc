// While no server can be reached, each failed attempt to connect costs little, however many calls
// wait, and calls say why they failed. Only the test moves the time.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/testing.verbena.pb.h"
#include "tests/transport/connect/scripted_bootstrap.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {
namespace outage_test {

using std::chrono::seconds;

class OutageTest : public RuntimePair {
 protected:
  OutageTest() {
    RuntimeOptions options;
    options.use_bootstrap = &bootstrap_;
    options.clock = &clock_;
    client_runtime_ = StartRuntime(std::move(options));
    channel_ = std::make_unique<Channel>(*client_runtime_, "static:a:1,b:1,c:1,d:1,e:1");
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  }
  ~OutageTest() override {
    clock_.Run();
    client_runtime_.reset();
  }

  Task<absl::Status> Echo(CallOptions options) {
    co_return (co_await stub_->Echo(testing::EchoRequest(), std::move(options))).status();
  }
  // Attempts to connect that have failed, and coroutines that the executor has resumed.
  struct Counts {
    uint64_t failures = 0;
    uint64_t resumed = 0;
  };
  Counts Look() {
    return Run([this]() -> Task<Counts> {
      const std::vector<ChannelServer> servers = *channel_->Servers();
      co_return Counts{.failures = std::accumulate(servers.begin(), servers.end(), uint64_t{0},
                                                   [](uint64_t sum, const ChannelServer& each) {
                                                     return sum + each.failures;
                                                   }),
                       .resumed = client_runtime_->executor(0).stats().resumed};
    }());
  }

  std::atomic<bool> waits_{false};
  std::atomic<bool> gives_up_{false};
  LocalNetwork network_;
  // Reaches nobody, and knows that at once, or waits.
  ScriptedBootstrap bootstrap_{network_, [this](const std::string& target) -> Task<absl::Status> {
                                 if (waits_) co_return co_await SleepUntil(kNever);
                                 if (gives_up_) {
                                   VERBENA_CO_RETURN_IF_ERROR(co_await Sleep(seconds(4)));
                                   co_return absl::DeadlineExceededError("too busy");
                                 }
                                 co_return absl::UnavailableError(target + " refuses");
                               }};
  testing::FakeClock clock_;
  std::unique_ptr<testing::Testing::Stub> stub_;
};

TEST_F(OutageTest, AFailedAttemptWakesNoCallThatGoesOnWaiting) {
  constexpr uint64_t kCalls = 2000;
  std::vector<JoinHandle<absl::Status>> calls;
  for (uint64_t i = 0; i < kCalls; ++i) {
    calls.push_back(
        client_runtime_->Spawn(Echo({.deadline = std::chrono::hours(1), .wait_for_ready = true})));
  }
  clock_.Advance(*client_runtime_, Duration::zero());
  const Counts before = Look();
  clock_.Advance(*client_runtime_, seconds(2));
  const Counts after = Look();
  const uint64_t failures = after.failures - before.failures;
  EXPECT_GT(failures, 10u);
  EXPECT_LT(after.resumed - before.resumed, failures * kCalls / 2);
  for (JoinHandle<absl::Status>& each : calls) EXPECT_FALSE(each.done());
}

TEST_F(OutageTest, ACallThatWaitedInVainSaysWhatWasLastKnown) {
  JoinHandle<absl::Status> call =
      client_runtime_->Spawn(Echo({.deadline = seconds(2), .wait_for_ready = true}));
  clock_.Advance(*client_runtime_, seconds(2));
  const absl::Status status = call.Join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_NE(status.message().find("a:1 refuses"), std::string::npos) << status;
}

TEST_F(OutageTest, AServerThatDoesNotAnswerIsUnavailable) {
  waits_ = true;
  for (const char* target : {"a:1", "static:a:1,a:2"}) {
    SCOPED_TRACE(target);
    channel_ = std::make_unique<Channel>(*client_runtime_, target);
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
    JoinHandle<absl::Status> call = client_runtime_->Spawn(Echo({.deadline = seconds(25)}));
    clock_.Advance(*client_runtime_, seconds(11));
    const absl::Status status = call.Join();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
    EXPECT_NE(status.message().find("no answer from a:1 within connect_timeout (10 s)"),
              std::string::npos)
        << status;
  }
}

TEST_F(OutageTest, AnAttemptThatThePeerGivesUpSaysHowLongItTook) {
  gives_up_ = true;
  channel_ = std::make_unique<Channel>(*client_runtime_, "a:1");
  stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  JoinHandle<absl::Status> call = client_runtime_->Spawn(Echo({.deadline = seconds(25)}));
  clock_.Advance(*client_runtime_, seconds(4));
  const absl::Status status = call.Join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("no link with a:1 after 4.0 s: too busy"), std::string::npos)
      << status;
}

TEST_F(OutageTest, ADeadlineThatPassesWhileTheCallConnectsSaysWhere) {
  waits_ = true;
  channel_ = std::make_unique<Channel>(*client_runtime_, "a:1");
  stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
  for (const bool through_its_scope : {false, true}) {
    SCOPED_TRACE(through_its_scope);
    JoinHandle<absl::Status> call = client_runtime_->Spawn(
        through_its_scope ? WithDeadline(Echo({}), seconds(1)) : Echo({.deadline = seconds(1)}));
    clock_.Advance(*client_runtime_, seconds(1));
    const absl::Status status = call.Join();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
    EXPECT_NE(status.message().find("before a:1 answered an attempt to connect"), std::string::npos)
        << status;
  }
}

}  // namespace outage_test
}  // namespace verbena::internal
