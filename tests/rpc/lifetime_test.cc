// Each call ends exactly once and gives back all that it took, also when no reply ends it: by a
// deadline, cancellation, abandonment, shutdown or loss.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rpc/testing_service.h"
#include "tests/support/held_port.h"
#include "tests/support/watched.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {
namespace lifetime_test {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Takes no frames, and does not mind the end of its link.
class ClosingListener final : public LinkListener {
 public:
  absl::Status OnFrame(Link&, const FrameHeader&, const char*) override { return absl::OkStatus(); }
  void OnLinkDown(Link&, const absl::Status&) override {}
  bool ExpectsFrames() const override { return false; }
};

// Its handler ends when the test lets it, or is cancelled.
class GatedService final : public testing::Testing::Service {
 public:
  Task<absl::Status> Echo(ServerContext&, const testing::EchoRequest& request,
                          testing::EchoReply& reply) override {
    ++begun;
    VERBENA_CO_RETURN_IF_ERROR(co_await may_end.Until(true));
    reply.set_number(request.number());
    co_return absl::OkStatus();
  }

  std::atomic<int> begun{0};
  Watched<bool> may_end;
};

class LifetimeTest : public RpcTest {
 protected:
  Task<absl::Status> CallWait(uint32_t wait_us, CallOptions options = {}) {
    testing::WaitRequest request;
    request.set_wait_us(wait_us);
    testing::Empty reply;
    co_return co_await stub_->Wait(request, reply, std::move(options));
  }

  int begun_ = 0;  // calls

  uint32_t CreditsBorrowed(Runtime& runtime) { return runtime.endpoint_stats(0).credits_borrowed; }
};

TEST_F(LifetimeTest, ADeadlineEndsTheCallAndTheHandler) {
  StartBoth();
  // Connected first: on a slow machine that alone could take longer than the deadline.
  ASSERT_EQ(Run(EchoOnce(0, "hello")), absl::OkStatus());
  absl::Status status = Run(CallWait(0, {.deadline = milliseconds(200)}));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  Eventually([&] { return service_.cancelled == 1; }, "the handler hears of it");
  EXPECT_EQ(Run(EchoOnce(1, "the link lives on")), absl::OkStatus());
}

TEST_F(LifetimeTest, TheDeadlineIsCarriedToTheServer) {
  StartBoth();
  auto call = [this](CallOptions options) -> Task<absl::StatusOr<testing::DeadlineReply>> {
    co_return co_await stub_->Deadline(testing::Empty(), std::move(options));
  };
  // The first call connects, the second one is plain.
  for (int i = 0; i < 2; ++i) {
    SCOPED_TRACE(i);
    absl::StatusOr<testing::DeadlineReply> with = Run(call({.deadline = seconds(100)}));
    ASSERT_TRUE(with.ok()) << with.status();
    EXPECT_TRUE(with->is_set());
    EXPECT_GT(with->left_us(), 50'000'000);
    EXPECT_LE(with->left_us(), 100'000'000);
  }
  absl::StatusOr<testing::DeadlineReply> without = Run(call({}));
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_FALSE(without->is_set());
}

TEST_F(LifetimeTest, TheWireShortensNoDeadline) {
  StartBoth();
  auto call = [this](Duration left) -> Task<absl::StatusOr<testing::DeadlineReply>> {
    co_return co_await stub_->Deadline(testing::Empty(), {.deadline = left});
  };
  for (const Duration left :
       {Duration(std::chrono::hours(2)), Duration(std::chrono::hours(30 * 24)),
        Duration(std::chrono::hours(100 * 365 * 24))}) {
    absl::StatusOr<testing::DeadlineReply> reply = Run(call(left));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_TRUE(reply->is_set());
    const Duration arrived = std::chrono::microseconds(reply->left_us());
    EXPECT_GT(arrived, left - std::chrono::minutes(1));
    EXPECT_LE(arrived, left);
  }
}

// A burst leaves a bounded number behind.
TEST_F(LifetimeTest, IdleCallsArePooledUpToABound) {
  StartBoth();
  auto burst = [this]() -> Task<absl::Status> {
    TaskScope scope(client_runtime_->executor(0));
    constexpr int kCalls = 1500;
    for (int i = 0; i < kCalls; ++i) {
      scope.Spawn([this]() -> Task<void> { (void)co_await CallWait(0); });
    }
    (void)co_await service_.waiting.Until(kCalls);
    scope.RequestCancel();
    co_await scope.Join();
    co_return absl::OkStatus();
  };
  ASSERT_EQ(Run(burst()), absl::OkStatus());
  Eventually([&] { return service_.waiting == 0; }, "the handlers end");
  EXPECT_EQ(Run(EchoOnce(1, "behind their responses")), absl::OkStatus());
  EXPECT_EQ(server_->stats().idle_calls, 1024u + 1u);
}

TEST_F(LifetimeTest, ADeadlineThatHasPassedSendsNothing) {
  StartBoth();
  ASSERT_EQ(Run(EchoOnce(1, "")), absl::OkStatus());
  absl::Status status = Run(CallWait(0, {.deadline = milliseconds(-1)}));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(service_.waiting, 0);
}

TEST_F(LifetimeTest, CancellingACallReachesItsHandler) {
  StartBoth();
  auto cancel_one = [this]() -> Task<absl::Status> {
    TaskScope scope(client_runtime_->executor(0));
    absl::Status ended;
    scope.Spawn([this, &ended]() -> Task<void> { ended = co_await CallWait(0); });
    (void)co_await service_.waiting.Until(1);
    scope.RequestCancel();
    co_await scope.Join();
    co_return ended;
  };
  absl::Status status = Run(cancel_one());
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  Eventually([&] { return service_.cancelled == 1; }, "the handler hears of it");
  EXPECT_EQ(service_.last_cancel, static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_EQ(Run(EchoOnce(1, "the link lives on")), absl::OkStatus());
}

// The scope destroys the calls at each stage of their way.
TEST_F(LifetimeTest, CallsDestroyedAtAnyAwaitHarmNobody) {
  constexpr int kCalls = 300;
  StartServer({}, {.limits = {.initial_credits = 2}});
  const std::pair<const char*, std::function<bool()>> stages[] = {
      {"before any has begun", [] { return true; }},
      {"while they wait for the connection", [this] { return begun_ == kCalls; }},
      {"while some wait for credits",
       [this] {
         Endpoint& endpoint = **CoreOf(*client_runtime_).shard(0).EndpointOn(0);
         return endpoint.stats().traffic.credit_waits > 0;
       }},
      {"while some wait for the reply", [this] { return service_.waiting > 0; }},
      {"while all wait for the reply", [this] { return service_.waiting == kCalls; }},
  };
  for (const auto& [name, reached] : stages) {
    SCOPED_TRACE(name);
    begun_ = 0;
    StartClient();
    auto abandon = [&]() -> Task<absl::Status> {
      {
        TaskScope scope(client_runtime_->executor(0));
        for (int i = 0; i < kCalls; ++i) {
          scope.Spawn([this]() -> Task<void> {
            ++begun_;
            (void)co_await CallWait(0);
          });
          // Each takes a SEND of its own: there are not so many credits.
          scope.Spawn(
              [this]() -> Task<void> { (void)co_await EchoOnce(0, std::string(3000, 'e')); });
        }
        while (!reached()) (void)co_await Yield();
      }
      co_return absl::OkStatus();
    };
    ASSERT_EQ(Run(abandon()), absl::OkStatus());
    EXPECT_EQ(Run(EchoOnce(1, "later calls work")), absl::OkStatus());
    Eventually([&] { return service_.waiting == 0; }, "every handler hears of it");
  }
}

TEST_F(LifetimeTest, NobodyListeningIsUnavailableAndNotExecuted) {
  StartBoth();
  server_.reset();
  absl::Status status = Run(EchoOnce(1, ""));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
}

TEST_F(LifetimeTest, AChannelComesBackWhenTheServerDoes) {
  const HeldPort port;
  StartServer({.address = port.address()});
  StartClient();
  ASSERT_EQ(Run(EchoOnce(1, "")), absl::OkStatus());
  server_.reset();
  EXPECT_FALSE(Run(EchoOnce(2, "")).ok());
  Serve({.address = port.address()});
  Eventually([&] { return Run(EchoOnce(3, "")).ok(); }, "a call after the restart");
}

TEST_F(LifetimeTest, ShutdownLetsRunningCallsEnd) {
  GatedService gated;
  server_runtime_ = StartRuntime();
  ServeWith(gated);
  StartClient();
  JoinHandle<absl::Status> call = client_runtime_->Spawn(EchoOnce(1, ""));
  Eventually([&] { return gated.begun == 1; }, "the handler runs");
  std::thread shutdown([this] { server_->Shutdown(seconds(60)); });
  // This channel shares the call's link until the client hears of the shutdown.
  Channel other(*client_runtime_, server_->address());
  Eventually([&] { return !Run(other.Connect()).ok(); }, "the server takes no more links");
  gated.may_end = true;
  EXPECT_EQ(call.Join(), absl::OkStatus());
  shutdown.join();
  server_.reset();
}

TEST_F(LifetimeTest, ShutdownCancelsWhatOutlastsItsGrace) {
  StartBoth();
  std::thread shutdown([this] {
    while (service_.waiting == 0) std::this_thread::yield();
    server_->Shutdown(milliseconds(10));
  });
  absl::Status status = Run(CallWait(0));
  shutdown.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(service_.cancelled, 1);
}

TEST_F(LifetimeTest, LosingTheClientCancelsItsHandlers) {
  StartBoth();
  auto call = [this]() -> Task<void> { (void)co_await CallWait(0); };
  client_runtime_->Spawn(call());
  Eventually([&] { return service_.waiting == 1; }, "the handler runs");
  stub_.reset();
  channel_.reset();
  client_runtime_.reset();
  const TimePoint limit = Clock::Real().Now() + seconds(20);
  while (service_.waiting != 0 && Clock::Real().Now() < limit) std::this_thread::yield();
  EXPECT_EQ(service_.cancelled, 1);
  // The server goes on with others.
  StartClient();
  EXPECT_EQ(Run(EchoOnce(1, "")), absl::OkStatus());
}

// A link's queue pair is destroyed and the CQ drained while receives of other links keep coming.
TEST_F(LifetimeTest, ReceivesThatArriveWhileAQueuePairIsDestroyedFindTheirLink) {
  StartBoth();
  bool stop = false;
  absl::Status failed;
  auto hammer = [this, &stop, &failed]() -> Task<void> {
    for (int i = 0; !stop && failed.ok(); ++i) failed = co_await EchoOnce(i, "hammer");
  };
  auto hammer_on = [&]() -> Task<absl::Status> {
    TaskScope scope(client_runtime_->executor(0));
    for (int i = 0; i < 8; ++i) scope.Spawn(hammer());
    for (int i = 0; i < 40; ++i) {
      absl::StatusOr<std::unique_ptr<MessageStream>> stream =
          co_await CoreOf(*client_runtime_).shard(0).bootstrap().Connect(server_->address());
      if (!stream.ok()) co_return stream.status();
      ClosingListener listener;
      absl::StatusOr<Link*> link = co_await (*CoreOf(*client_runtime_).shard(0).EndpointOn(0))
                                       ->Connect(*std::move(stream), listener, {});
      if (!link.ok()) co_return link.status();
      (*link)->Close(absl::CancelledError("only to see it close"));
    }
    stop = true;
    co_await scope.Join();
    co_return failed;
  };
  EXPECT_EQ(Run(hammer_on()), absl::OkStatus());
}

TEST_F(LifetimeTest, CreditsAndReceivesAreHomeWhenTheLinkIsGone) {
  StartServer();
  StartClient({.limits = {.initial_credits = 2}});
  auto many = [this]() -> Task<absl::Status> {
    TaskScope scope(client_runtime_->executor(0));
    for (int i = 0; i < 5000; ++i) {
      scope.Spawn([this, i]() -> Task<void> {
        EXPECT_EQ(co_await EchoOnce(i, std::string(900, 'c')), absl::OkStatus());
      });
    }
    co_await scope.Join();
    co_return absl::OkStatus();
  };
  ASSERT_EQ(Run(many()), absl::OkStatus());
  EXPECT_GT(client_runtime_->endpoint_stats(0).traffic.credit_waits, 0u);
  EXPECT_GT(CreditsBorrowed(*server_runtime_), 0u) << "a starving link borrowed nothing";
  stub_.reset();
  channel_.reset();
  client_runtime_.reset();
  const TimePoint limit = Clock::Real().Now() + seconds(20);
  while (server_runtime_->endpoint_stats(0).links != 0 && Clock::Real().Now() < limit) {
    std::this_thread::yield();
  }
  EXPECT_EQ(CreditsBorrowed(*server_runtime_), 0u);
  EXPECT_EQ(server_runtime_->endpoint_stats(0).stale_completions, 0u);
}

TEST_F(LifetimeTest, OneLinkMoreThanMaxLinksIsRefusedByName) {
  StartServer({}, {.limits = {.max_links = 2}});
  StartClient();
  ASSERT_EQ(Run(EchoOnce(1, "")), absl::OkStatus());
  auto second = StartRuntime();
  auto third = StartRuntime();
  auto connect = [this](Runtime& runtime) {
    Channel channel(runtime, server_->address());
    return runtime.BlockOn(channel.Connect());
  };
  auto kept = std::make_unique<Channel>(*second, server_->address());
  EXPECT_EQ(second->BlockOn(kept->Connect()), absl::OkStatus());
  absl::Status refused = connect(*third);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_NE(std::string(refused.message()).find("max_links"), std::string::npos) << refused;
  EXPECT_EQ(Run(EchoOnce(2, "the others do not notice")), absl::OkStatus());
  kept.reset();
  second.reset();
  Eventually([&] { return connect(*third).ok(); }, "the slot of a closed link is used again");
}

TEST_F(LifetimeTest, EveryExecutorReachesEveryExecutor) {
  StartServer({}, {.executors = 3});
  client_runtime_ = StartRuntime({.executors = 2});
  std::vector<std::unique_ptr<Channel>> kept;  // links close with their last channel
  for (int server_executor = 0; server_executor < 3; ++server_executor) {
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address(),
                                         ChannelOptions{.server_executor = server_executor});
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
    kept.push_back(std::move(channel_));
    for (int executor = 0; executor < 2; ++executor) {
      EXPECT_EQ(Run(EchoOnce(executor, "x"), executor), absl::OkStatus());
    }
  }
  for (int executor = 0; executor < 2; ++executor) {
    EXPECT_EQ(client_runtime_->endpoint_stats(executor).links, 3u);
  }
  for (int executor = 0; executor < 3; ++executor) {
    EXPECT_EQ(server_runtime_->endpoint_stats(executor).links, 2u);
  }
}

TEST_F(LifetimeTest, ChannelsToOneTargetShareALink) {
  StartBoth();
  ASSERT_EQ(Run(EchoOnce(1, "")), absl::OkStatus());
  Channel other(*client_runtime_, server_->address());
  EXPECT_EQ(Run(other.Connect()), absl::OkStatus());
  EXPECT_EQ(client_runtime_->endpoint_stats(0).links, 1u);
}

TEST_F(LifetimeTest, TooManyCallsAtOnceAreRefusedAtOnce) {
  StartServer({.max_concurrent_calls = 3, .max_calls_per_client = 3});
  StartClient();
  auto overload = [this]() -> Task<int> {
    TaskScope scope(client_runtime_->executor(0));
    Watched<int> refused;
    for (int i = 0; i < 5; ++i) {
      scope.Spawn([this, &refused]() -> Task<void> {
        absl::Status status = co_await CallWait(0);
        if (status.code() != absl::StatusCode::kResourceExhausted) co_return;
        EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
        ++refused;
      });
    }
    (void)co_await refused.Until([](int count) { return count >= 2; });
    scope.RequestCancel();
    co_await scope.Join();
    co_return refused;
  };
  EXPECT_EQ(Run(overload()), 2);
}

}  // namespace lifetime_test
}  // namespace verbena::internal
