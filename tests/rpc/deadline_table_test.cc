// A deadline means the same on whichever path a call comes by it (docs/guide.md). Only the test
// moves the time.
//
// The table of paths and effects is whole, and each cell is tested in one place:
//
//   deadline           request has left:                  request has not left:
//                      tally, outcome,   token            tally, outcome,   token
//                      message           of the budget    message           of the budget
//   the call's own     balancing_health  here             here              here
//   the channel's      balancing_health  here             here              here
//   the method's       balancing_health  here             here              here
//   an interceptor's   balancing_health  here             here              (cannot be)
//   WithDeadline()'s   balancing_health  here             here              here
//   the handler's      balancing_health  here             here              here
//   the attempt's      balancing_health  here             here              here
//
// With a policy, interceptors run once the attempt has its server. Beside the table: calls without
// a policy that wait for a server (client/outage_test), calls that wait for memory
// (memory_wait_test), further attempts and hedges by a script (client/retried_call_test,
// client/hedged_call_test).

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/testing.verbena.pb.h"
#include "tests/support/watched.h"
#include "tests/transport/connect/scripted_bootstrap.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/client/attempts.h"
#include "verbena/rpc/client/channel.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {
namespace deadline_table_test {

constexpr Duration kLimit = std::chrono::milliseconds(500);

enum class Path { kOwn, kChannels, kMethods, kInterceptors, kTasks, kHandlers, kAttempts };

constexpr const char* NameOf(Path path) {
  switch (path) {
    case Path::kOwn:
      return "Own";
    case Path::kChannels:
      return "Channels";
    case Path::kMethods:
      return "Methods";
    case Path::kInterceptors:
      return "Interceptors";
    case Path::kTasks:
      return "Tasks";
    case Path::kHandlers:
      return "Handlers";
    case Path::kAttempts:
      return "Attempts";
  }
  return "";
}

// Never hears from "silent:1".
Task<absl::Status> BeSilent(const std::string& target) {
  if (target == "silent:1") co_return co_await SleepUntil(kNever);
  co_return absl::OkStatus();
}

class LimitingInterceptor final : public ClientInterceptor {
 public:
  Task<absl::Status> Intercept(ClientCallView&, ClientNext next) override {
    co_return co_await WithDeadline(next(), kLimit);
  }
};

// Answers nothing.
class SilentService final : public testing::Testing::Service {
 public:
  Task<absl::Status> Echo(ServerContext&, const testing::EchoRequest&,
                          testing::EchoReply&) override {
    ++waiting;
    co_return co_await SleepUntil(kNever);
  }

  Watched<int> waiting;
};

// Makes the calls of others for them.
class FrontService final : public testing::Testing::Service {
 public:
  Task<absl::Status> Echo(ServerContext&, const testing::EchoRequest&,
                          testing::EchoReply&) override {
    ++begun;
    const testing::Testing::Stub stub(*channel);
    made = (co_await stub.Echo(testing::EchoRequest())).status();
    ++ended;
    co_return absl::OkStatus();
  }

  Watched<int> begun;
  Watched<int> ended;
  Channel* channel = nullptr;
  absl::Status made;  // on the server's executor
};

class DeadlineTableTest : public RuntimePair, public ::testing::WithParamInterface<Path> {
 protected:
  DeadlineTableTest() {
    server_runtime_ = StartRuntime(On(listening_, standing_));
    ServeWith(silent_, {.address = "server:1"});
    client_runtime_ = StartRuntime(On(connecting_, clock_));
  }
  ~DeadlineTableTest() override {
    clock_.Run();
    standing_.Run();
    front_clients_.reset();
    to_front_.reset();
    front_server_.reset();
    channel_.reset();
    client_runtime_.reset();
    StopAll();
  }

  static RuntimeOptions On(Bootstrap& bootstrap, Clock& clock) {
    RuntimeOptions options;
    options.use_bootstrap = &bootstrap;
    options.clock = &clock;
    return options;
  }

  // Every failure that may pass takes the one token that there is.
  ChannelOptions OptionsOf(Path path) const {
    RetryPolicy policy{.max_attempts = 2};
    if (path == Path::kAttempts) policy.attempt_timeout = kLimit;
    MethodConfig config{.retry = policy};
    if (path == Path::kMethods) config.timeout = kLimit;
    ChannelOptions options{
        .service_config = {.methods = {std::move(config)}, .budget = {.max_tokens = 1}}};
    if (path == Path::kChannels) options.default_deadline = kLimit;
    if (path == Path::kInterceptors) {
      options.interceptors = {std::make_shared<LimitingInterceptor>()};
    }
    return options;
  }

  // A call of `channel_` that comes by a deadline on `path`.
  Task<absl::Status> Call(Path path) {
    const testing::Testing::Stub stub(*channel_);
    CallOptions options;
    if (path == Path::kOwn) options.deadline = kLimit;
    co_return (co_await stub.Echo(testing::EchoRequest(), std::move(options))).status();
  }

  // Its caller has another clock, which stands still: nobody but the handler knows of the deadline
  // when it passes.
  void StartCallOfAHandler() {
    front_.channel = channel_.get();
    front_server_ = *Server::Start(*client_runtime_, {&front_}, {.address = "front:1"});
    front_clients_ = StartRuntime(On(calling_, standing_));
    to_front_ = std::make_unique<Channel>(*front_clients_, "front:1");
    front_clients_->Spawn([](Channel& channel) -> Task<void> {
      const testing::Testing::Stub stub(channel);
      (void)co_await stub.Echo(testing::EchoRequest(), {.deadline = kLimit});
    }(*to_front_));
    EXPECT_EQ(Run(front_.begun.Until(1)), absl::OkStatus());
  }

  // How a call on `path` ends, whose deadline passes while `target` has the request (`left`), or
  // while the call connects.
  absl::Status EndOfCall(Path path, ChannelOptions options, const char* target, bool left) {
    channel_ = std::make_unique<Channel>(*client_runtime_, target, std::move(options));
    (void)FailuresCounted();
    JoinHandle<absl::Status> call;
    if (path == Path::kHandlers) {
      StartCallOfAHandler();
    } else {
      call = client_runtime_->Spawn(path == Path::kTasks ? WithDeadline(Call(path), kLimit)
                                                         : Call(path));
    }
    if (left) {
      EXPECT_EQ(Run(silent_.waiting.Until(1)), absl::OkStatus());
    }
    // The rest is for how a deadline is rounded on its way to the handler.
    clock_.Advance(*client_runtime_, kLimit + std::chrono::milliseconds(10));
    if (path != Path::kHandlers) return call.Join();
    EXPECT_EQ(Run(front_.ended.Until(1)), absl::OkStatus());
    return Run([](FrontService& front) -> Task<absl::Status> { co_return front.made; }(front_));
  }

  // From the first time on.
  uint64_t FailuresCounted() {
    return Run([](Channel& channel) -> Task<uint64_t> {
      co_return CoreOf(channel).Here()->KeepTally().failed;
    }(*channel_));
  }
  bool HasToken() {
    return Run([](Channel& channel) -> Task<bool> {
      co_return CoreOf(channel).policies()->account(0).MayTakeMore();
    }(*channel_));
  }

  LocalNetwork network_;
  LocalBootstrap listening_{network_};
  LocalBootstrap calling_{network_};
  ScriptedBootstrap connecting_{network_, BeSilent};
  testing::FakeClock clock_;     // of those who make the calls
  testing::FakeClock standing_;  // of all others
  SilentService silent_;
  FrontService front_;
  std::unique_ptr<Server> front_server_;
  std::unique_ptr<Runtime> front_clients_;
  std::unique_ptr<Channel> to_front_;
};

TEST_P(DeadlineTableTest, OnlyAnAttemptsDeadlineTakesATokenOfACallThatHasLeft) {
  const absl::Status status =
      EndOfCall(GetParam(), OptionsOf(GetParam()), "server:1", /*left=*/true);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(HasToken(), GetParam() != Path::kAttempts);
  EXPECT_EQ(channel_->retry_stats().retries, 0u);
}

TEST_P(DeadlineTableTest, ACallThatHasNotLeftBlamesNobody) {
  ChannelOptions options = OptionsOf(GetParam());
  // Its deadline would not hold for an attempt that has no server yet.
  const bool has_policy = GetParam() != Path::kInterceptors;
  if (!has_policy) options.service_config = {};
  const absl::Status status = EndOfCall(GetParam(), std::move(options), "silent:1", /*left=*/false);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_NE(status.message().find("before silent:1 answered an attempt to connect"),
            std::string::npos)
      << status;
  EXPECT_EQ(FailuresCounted(), 0u);
  if (has_policy) {
    EXPECT_EQ(HasToken(), GetParam() != Path::kAttempts);
  }
}

INSTANTIATE_TEST_SUITE_P(, DeadlineTableTest,
                         ::testing::Values(Path::kOwn, Path::kChannels, Path::kMethods,
                                           Path::kInterceptors, Path::kTasks, Path::kHandlers,
                                           Path::kAttempts),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace deadline_table_test
}  // namespace verbena::internal
