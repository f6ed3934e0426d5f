// A further attempt of an IDEMPOTENT call begins at a server when no earlier one goes on there, nor
// a change of a file that the earlier one has left. A deduplicated call that is repeated waits for
// such a change, too.

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/rpc/call_event.h"
#include "tests/rpc/counter_service.h"
#include "tests/rpc/dedupe_testing.verbena.pb.h"
#include "tests/rpc/link_breaker.h"
#include "tests/rpc/payload_testing.verbena.pb.h"
#include "tests/rpc/rogue_peer.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/testing.verbena.pb.h"
#include "tests/support/any_handler.h"
#include "tests/support/moved_clock.h"
#include "tests/support/watched.h"
#include "tests/transport/file/held_writes.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/file/file.h"

namespace verbena::internal {
namespace further_attempt_test {

using namespace std::chrono_literals;

// Runs what a test gives it for the handler, and notes whether two run at once.
class Store final : public testing::Payloads::Service {
 public:
  using Handler = AnyHandler<ServerContext&, int>;

  // The number counts attempts, from 1. Nothing runs when it is replaced.
  Handler handler = [](ServerContext&, int) -> Task<absl::Status> { co_return absl::OkStatus(); };
  Watched<int> begun;
  Watched<int> ended;
  std::atomic<int> most_at_once{0};

 private:
  Task<absl::Status> Put(ServerContext& context, const testing::PutRequest&,
                         testing::PutReply& reply) override {
    const Buffer payload = context.TakeRequestPayload();
    absl::Status status = co_await Run(context);
    reply.set_bytes(payload.size());
    reply.set_right(std::all_of(payload.data(), payload.data() + payload.size(),
                                [](char c) { return c == 'p'; }));
    co_return status;
  }
  VERBENA_CORO_WRAPPER Task<absl::Status> Get(ServerContext& context, const testing::GetRequest&,
                                              testing::GetReply&) override {
    return Run(context);
  }
  Task<absl::Status> Run(ServerContext& context) {
    const int attempt = ++begun;
    most_at_once = std::max(most_at_once.load(), begun - ended);
    absl::Status status = co_await handler(context, attempt);
    ++ended;
    co_return status;
  }
};

class Echoes final : public testing::Testing::Service {
 private:
  Task<absl::Status> Echo(ServerContext&, const testing::EchoRequest&,
                          testing::EchoReply&) override {
    co_return absl::OkStatus();
  }
};

class PassingInterceptor final : public ClientInterceptor {
 public:
  // Whether calls that it made at the end of the last attempt would have time.
  std::atomic<bool> has_time{false};

 private:
  Task<absl::Status> Intercept(ClientCallView&, ClientNext next) override {
    absl::Status status = co_await next();
    has_time = (co_await CurrentContext()).deadline() == kNever;
    co_return status;
  }
};

// Destroys what it has of the first two attempts when a test says so.
class DestroyingInterceptor final : public ClientInterceptor {
 public:
  Watched<int> begun;
  Watched<int> may_destroy;  // as many, once the test has set it
  Watched<int> destroyed;

 private:
  Task<absl::Status> Intercept(ClientCallView&, ClientNext next) override {
    const int attempt = ++begun;
    if (attempt > 2) co_return co_await next();
    {
      TaskScope rest(co_await CurrentContext());
      rest.Spawn(Ignored(next()));
      VERBENA_CO_RETURN_IF_ERROR(
          co_await may_destroy.Until([attempt](int count) { return count >= attempt; }));
    }
    ++destroyed;
    co_return absl::UnavailableError("an interceptor has destroyed the attempt");
  }
  static Task<void> Ignored(Task<absl::Status> rest) { (co_await std::move(rest)).IgnoreError(); }
};

// Blocks a thread until a test says so, whether or not the call is cancelled.
class Stall {
 public:
  Task<absl::Status> Then(absl::Status status) {
    co_return co_await RunBlocking([this, status] {
      begun_ = true;
      may_end_.wait();
      return status;
    });
  }
  // Waits until the thread blocks: before, a cancellation would take the callable back.
  VERBENA_CORO_WRAPPER Task<absl::Status> Begun() { return begun_.Until(true); }
  void End() { may_end_.count_down(); }

 private:
  Watched<bool> begun_;
  std::latch may_end_{1};
};

// The clock of the client goes an hour, an attempt's time, when a test says so.
class FurtherAttemptTest : public RuntimePair {
 protected:
  struct Member {
    Store store;
    Echoes echoes;
    std::unique_ptr<Server> server;
  };

  void TearDown() override {
    channel_.reset();
    client_runtime_.reset();
    members_.clear();
  }

  void Start(int servers, ChannelOptions options = {}) {
    RuntimeOptions server_runtime;
    server_runtime.executors = executors_;
    server_runtime_ = StartRuntime(std::move(server_runtime), breaker_.device());
    std::string target = "static:";
    for (int i = 0; i < servers; ++i) {
      Member& member = *members_.emplace_back(std::make_unique<Member>());
      member.server = Server::Start(*server_runtime_, {&member.store, &member.echoes}).value();
      target += (i == 0 ? "" : ",") + member.server->address();
    }
    RuntimeOptions runtime{.clock = &clock_};
    runtime.limits.ping_interval = runtime.limits.connect_timeout = 1000h;
    runtime.limits.idle_timeout = Duration::zero();
    client_runtime_ = StartRuntime(std::move(runtime), breaker_.device());
    options.balancing = Balancing::kRouteKey;
    options.service_config = {
        .methods = {{.name = "verbena.testing.Payloads",
                     .retry = RetryPolicy{.max_attempts = 5,
                                          .initial_backoff = 1ms,
                                          .max_backoff = 1ms,
                                          .retryable_codes = {absl::StatusCode::kUnavailable},
                                          .attempt_timeout = 1h}}}};
    channel_ = std::make_unique<Channel>(*client_runtime_, target, std::move(options));
    Eventually([this, servers] { return Run(ReadyServers()) == servers; }, "all are ready");
  }
  Task<int> ReadyServers() {
    (void)co_await channel_->Connect();
    const std::vector<ChannelServer> all = *channel_->Servers();
    co_return static_cast<int>(
        std::ranges::count(all, ChannelServer::State::kReady, &ChannelServer::state));
  }

  Task<absl::Status> PutWith(CallOptions options, size_t bytes) {
    if (bytes > 0) {
      VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload, co_await channel_->AllocateBuffer(bytes));
      std::fill_n(payload.data(), bytes, 'p');
      options.request_payload = std::move(payload);
    }
    const testing::Payloads::Stub stub(*channel_);
    absl::StatusOr<testing::PutReply> reply =
        co_await stub.Put(testing::PutRequest(), std::move(options));
    if (reply.ok()) {
      EXPECT_EQ(reply->bytes(), bytes);
      EXPECT_TRUE(reply->right());
    }
    co_return reply.status();
  }
  JoinHandle<absl::Status> Put(CallOptions options = {}, size_t bytes = 0) {
    return client_runtime_->Spawn(PutWith(std::move(options), bytes));
  }
  // Make handlers for a Store.
  static Store::Handler StallsIn(Stall& stall) {
    return [&stall](ServerContext&, int) -> Task<absl::Status> {
      co_return co_await stall.Then(absl::OkStatus());
    };
  }
  static Store::Handler IsBusyOrSleeps(bool is_busy) {
    return [is_busy](ServerContext&, int) -> Task<absl::Status> {
      co_return is_busy ? absl::UnavailableError("busy") : co_await SleepUntil(kNever);
    };
  }
  // Time passes, of which the client hears.
  void Pass(Duration time) {
    clock_.Advance(time);
    EXPECT_EQ(Run(Pause()), absl::OkStatus());
  }
  // An hour passes, and whatever the client sends because of that has come to the servers.
  void PassAnHour() {
    clock_.Advance(1h);
    AwaitArrival();
  }
  // Returns when the servers have all that the client has sent.
  void AwaitArrival() {
    for (uint64_t key = 0; key < 16; ++key) {
      const testing::Testing::Stub stub(*channel_);
      EXPECT_EQ(
          Run(ToTask(stub.Echo(testing::EchoRequest(), {.route_key = key, .wait_for_ready = true})))
              .status(),
          absl::OkStatus());
    }
  }
  // The server that calls with `key` go to, and another one.
  Store& StoreOf(uint64_t key) {
    EXPECT_EQ(Put({.route_key = key}).Join(), absl::OkStatus());
    for (const auto& each : members_) {
      if (each->store.begun == 1) return each->store;
    }
    ADD_FAILURE() << "no server had the call";
    return members_[0]->store;
  }
  Store& OtherThan(const Store& store) {
    return &members_[0]->store == &store ? members_[1]->store : members_[0]->store;
  }
  Store& only() { return members_[0]->store; }
  void AwaitStall(Stall& stall) { (void)server_runtime_->BlockOn(stall.Begun()); }
  void AwaitBegun(Store& store, int count) {
    (void)server_runtime_->BlockOn(store.begun.Until([count](int n) { return n >= count; }));
  }
  // Lets the handler that stalls go on, and waits for its end.
  void EndStall(Stall& stall, Store& store) {
    stall.End();
    (void)server_runtime_->BlockOn(
        store.ended.Until([begun = store.begun.load()](int n) { return n >= begun; }));
  }
  uint64_t retries() const { return channel_->retry_stats().retries; }

  LinkBreaker breaker_;
  MovedClock clock_;
  int executors_ = 1;  // of the servers
  std::vector<std::unique_ptr<Member>> members_;
};

TEST_F(FurtherAttemptTest, AnAttemptThatEndsWellAfterItsTimeIsTheCallsAnswer) {
  Start(1);
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{256} << 10}) {
    const int before = only().begun;
    Stall stall;
    only().handler = StallsIn(stall);
    JoinHandle<absl::Status> call = Put({}, bytes);
    AwaitStall(stall);
    PassAnHour();
    PassAnHour();
    EXPECT_EQ(only().begun, before + 1) << "another attempt runs beside the first";
    stall.End();
    EXPECT_EQ(call.Join(), absl::OkStatus());
    EXPECT_EQ(only().begun, before + 1);
  }
  EXPECT_EQ(retries(), 0u);
}

TEST_F(FurtherAttemptTest, TheNextAttemptBeginsWhenTheHandlerOfTheFirstHasEnded) {
  Start(1);
  for (const size_t bytes : {size_t{0}, size_t{256} << 10}) {
    const int before = only().begun;
    Stall stall;
    only().handler = [&stall, before](ServerContext&, int attempt) -> Task<absl::Status> {
      if (attempt == before + 1) co_return co_await stall.Then(absl::UnavailableError("busy"));
      co_return absl::OkStatus();
    };
    JoinHandle<absl::Status> call = Put({}, bytes);
    AwaitStall(stall);
    PassAnHour();
    PassAnHour();
    EXPECT_EQ(only().begun, before + 1) << "another attempt runs beside the first";
    stall.End();
    EXPECT_EQ(call.Join(), absl::OkStatus());
    EXPECT_EQ(only().begun, before + 2);
    EXPECT_EQ(only().most_at_once, 1);
  }
  EXPECT_EQ(retries(), 2u);
}

TEST_F(FurtherAttemptTest, AHandlerThatHeedsItsCancellationMakesRoomForTheNextAttempt) {
  auto interceptor = std::make_shared<PassingInterceptor>();
  Start(1, {.interceptors = {std::move(interceptor)}});
  only().handler = [](ServerContext&, int attempt) -> Task<absl::Status> {
    co_return attempt == 1 ? co_await SleepUntil(kNever) : absl::OkStatus();
  };
  JoinHandle<absl::Status> call = Put();
  AwaitBegun(only(), 1);
  Pass(1h);
  EXPECT_EQ(call.Join(), absl::OkStatus());
  EXPECT_EQ(only().begun, 2);
  EXPECT_EQ(only().most_at_once, 1);
}

TEST_F(FurtherAttemptTest, InterceptorsWaitWithTheAttempt) {
  auto interceptor = std::make_shared<PassingInterceptor>();
  Start(1, {.interceptors = {interceptor}});
  Stall stall;
  only().handler = StallsIn(stall);
  JoinHandle<absl::Status> call = Put();
  AwaitStall(stall);
  PassAnHour();
  PassAnHour();
  EXPECT_EQ(only().begun, 1);
  stall.End();
  EXPECT_EQ(call.Join(), absl::OkStatus());
  EXPECT_TRUE(interceptor->has_time);
}

TEST_F(FurtherAttemptTest, TheFailureOfALastAttemptIsThatItsTimeHasPassed) {
  Start(1);
  only().handler = [](ServerContext&, int) -> Task<absl::Status> {
    co_return co_await SleepUntil(kNever);
  };
  JoinHandle<absl::Status> call = Put();
  for (int attempt = 1; attempt <= 5; ++attempt) {
    AwaitBegun(only(), attempt);
    Pass(1h);
  }
  const absl::Status status = call.Join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_NE(status.message().find("after 5 attempts"), std::string::npos) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
}

TEST_F(FurtherAttemptTest, AnotherServerHasTheNextAttemptAtOnce) {
  Start(2);
  Store& own = StoreOf(7);
  Store& other = OtherThan(own);
  Stall stall;
  own.handler = StallsIn(stall);
  JoinHandle<absl::Status> call = Put({.route_key = 7}, 256 << 10);
  AwaitStall(stall);
  Pass(1h);
  EXPECT_EQ(call.Join(), absl::OkStatus());
  EXPECT_EQ(other.begun, 1);
  EXPECT_EQ(own.begun, 2);
  EndStall(stall, own);
}

// Both servers were tried, and the first one still runs its attempt.
TEST_F(FurtherAttemptTest, AnAttemptThatComesBackToAServerWaitsForTheFirst) {
  Start(2);
  Store& own = StoreOf(7);
  Store& other = OtherThan(own);
  Stall stall;
  own.handler = [&stall](ServerContext&, int attempt) -> Task<absl::Status> {
    if (attempt == 2) co_return co_await stall.Then(absl::OkStatus());
    co_return absl::OkStatus();
  };
  other.handler = [](ServerContext&, int) -> Task<absl::Status> {
    co_return absl::UnavailableError("busy");
  };
  JoinHandle<absl::Status> call = Put({.route_key = 7});
  AwaitStall(stall);
  Pass(1h);
  AwaitBegun(other, 1);
  PassAnHour();
  PassAnHour();
  EXPECT_EQ(own.begun, 2) << "another attempt runs beside the first";
  stall.End();
  EXPECT_EQ(call.Join(), absl::OkStatus());
  EXPECT_EQ(own.begun, 3);
  EXPECT_EQ(own.most_at_once, 1);
  EXPECT_EQ(retries(), 2u) << "the wait is no attempt";
}

TEST_F(FurtherAttemptTest, ACallsDeadlineEndsTheWait) {
  for (const bool comes_back : {false, true}) {
    SCOPED_TRACE(comes_back);
    Start(2);
    Store& own = StoreOf(7);
    Store& other = OtherThan(own);
    Stall stall;
    own.handler = StallsIn(stall);
    other.handler = IsBusyOrSleeps(comes_back);
    JoinHandle<absl::Status> call = Put({.deadline = 10h, .route_key = 7});
    AwaitStall(stall);
    Pass(1h);
    AwaitBegun(other, 1);
    for (int hour = 0; hour < 10; ++hour) PassAnHour();
    const absl::Status status = call.Join();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
    EXPECT_EQ(own.begun, 2);
    EndStall(stall, own);
    own.handler = [](ServerContext&, int) -> Task<absl::Status> { co_return absl::OkStatus(); };
    EXPECT_EQ(Put({.route_key = 7}).Join(), absl::OkStatus());
    TearDown();
  }
}

TEST_F(FurtherAttemptTest, ACallMayBeCancelledOrAbandonedWhileItWaits) {
  for (const bool comes_back : {false, true}) {
    SCOPED_TRACE(comes_back);
    Start(2);
    Store& own = StoreOf(7);
    Store& other = OtherThan(own);
    Stall stall;
    own.handler = StallsIn(stall);
    other.handler = IsBusyOrSleeps(comes_back);
    JoinHandle<absl::Status> call = Put({.route_key = 7}, 256 << 10);
    AwaitStall(stall);
    Pass(1h);
    AwaitBegun(other, 1);
    PassAnHour();
    call.RequestCancel();
    const absl::Status status = call.Join();
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
    // The slot is free, and what comes late for it is dropped.
    EndStall(stall, own);
    own.handler = [](ServerContext&, int) -> Task<absl::Status> { co_return absl::OkStatus(); };
    EXPECT_EQ(Put({.route_key = 7}, 256 << 10).Join(), absl::OkStatus());
    TearDown();
  }
}

TEST_F(FurtherAttemptTest, AServerMayEndWhileAnAttemptWaitsForAnEarlierOne) {
  Start(2);
  Store& own = StoreOf(7);
  Store& other = OtherThan(own);
  Stall stall;
  own.handler = StallsIn(stall);
  other.handler = [](ServerContext&, int attempt) -> Task<absl::Status> {
    co_return attempt == 1 ? absl::UnavailableError("busy") : absl::OkStatus();
  };
  JoinHandle<absl::Status> call = Put({.route_key = 7});
  AwaitStall(stall);
  Pass(1h);
  AwaitBegun(other, 1);
  PassAnHour();
  // Its links are lost; its handler goes on.
  Member& gone = &members_[0]->store == &own ? *members_[0] : *members_[1];
  (void)gone.server->Shutdown(Duration::zero());
  EXPECT_EQ(call.Join(), absl::OkStatus());
  EXPECT_EQ(other.begun, 2);
  EndStall(stall, own);
}

// The time of a later attempt counts nevertheless: the server has gone for good.
TEST_F(FurtherAttemptTest, AnAttemptMayBeDestroyedWhileItWaitsForAnEarlierOne) {
  auto interceptor = std::make_shared<DestroyingInterceptor>();
  Start(1, {.interceptors = {interceptor}});
  Stall stall;
  only().handler = StallsIn(stall);
  JoinHandle<absl::Status> call = Put({.wait_for_ready = true});
  AwaitStall(stall);
  interceptor->may_destroy = 1;
  (void)server_runtime_->BlockOn(interceptor->begun.Until(2));
  AwaitArrival();
  EXPECT_EQ(only().begun, 1) << "another attempt runs beside the first";
  // Before the third attempt the server must be gone.
  clock_.Stop();
  interceptor->may_destroy = 2;
  (void)server_runtime_->BlockOn(interceptor->destroyed.Until(2));
  EndStall(stall, only());
  members_[0]->server.reset();
  clock_.GoOn();
  Eventually(
      [this] {
        Pass(1h);
        return retries() == 4;
      },
      "each attempt's time has passed");
  call.RequestCancel();
  EXPECT_FALSE(call.Join().ok());
  EXPECT_EQ(only().begun, 1);
}

TEST_F(FurtherAttemptTest, ACallWithoutSideEffectsIsRepeatedBesideItsFirstAttempt) {
  Start(1);
  Stall stall;
  only().handler = [&stall](ServerContext&, int attempt) -> Task<absl::Status> {
    if (attempt == 1) co_return co_await stall.Then(absl::OkStatus());
    co_return absl::OkStatus();
  };
  const auto get = [this]() -> Task<absl::Status> {
    const testing::Payloads::Stub stub(*channel_);
    co_return (co_await stub.Get(testing::GetRequest(), {})).status();
  };
  JoinHandle<absl::Status> call = client_runtime_->Spawn(get());
  AwaitStall(stall);
  Pass(1h);
  EXPECT_EQ(call.Join(), absl::OkStatus());
  EXPECT_EQ(only().begun, 2);
  EXPECT_EQ(only().most_at_once, 2);
  EndStall(stall, only());
}

// The write that the handler has left lands before the next attempt's handler begins.
TEST_F(FurtherAttemptTest, TheNextAttemptBeginsWhenAWriteThatTheFirstHasLeftHasEnded) {
  Start(1);
  HeldWrites& disk = *server_runtime_->BlockOn(HeldWrites::Install(server_runtime_->executor(0)));
  only().handler = [](ServerContext& context, int) -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, co_await context.AllocateBuffer(4096));
    VERBENA_CO_ASSIGN_OR_RETURN(File file, co_await File::Open("/dev/null", {.flags = O_RDWR}));
    co_return co_await file.Write(block.view(), 0);
  };
  JoinHandle<absl::Status> call = Put();
  (void)server_runtime_->BlockOn(disk.begun.Until([](int n) { return n == 1; }));
  Pass(1h);
  (void)server_runtime_->BlockOn(disk.left.Until([](int n) { return n == 1; }));
  (void)server_runtime_->BlockOn(only().ended.Until([](int n) { return n == 1; }));
  PassAnHour();
  PassAnHour();
  EXPECT_EQ(only().begun, 1) << "another attempt begins while the first one's write goes on";
  (void)server_runtime_->BlockOn(disk.EndWrites());
  EXPECT_EQ(call.Join(), absl::OkStatus());
  EXPECT_EQ(only().begun, 2);
}

// The link of the first attempt is lost while its handler blocks a thread.
class LostAttemptTest : public FurtherAttemptTest {
 protected:
  // The second attempt has come to the server when this returns.
  JoinHandle<absl::Status> LoseFirst(Stall& stall, CallOptions options = {}) {
    only().handler = [&stall](ServerContext&, int attempt) -> Task<absl::Status> {
      if (attempt > 1) co_return absl::OkStatus();
      co_return co_await stall.Then(absl::OkStatus());
    };
    breaker_.Arm(CallEvent::kHandlerBegins);
    options.wait_for_ready = true;
    JoinHandle<absl::Status> call = Put(std::move(options));
    // The server hears that the link is lost, too, and cancels the handler.
    AwaitStall(stall);
    breaker_.OfHandler(CallEvent::kHandlerBegins);
    // The client notices when it sends something.
    const testing::Testing::Stub stub(*channel_);
    Eventually(
        [&] {
          (void)Run(ToTask(stub.Echo(testing::EchoRequest(), {})));
          return retries() > 0;
        },
        "the loss of the link is seen");
    AwaitArrival();
    AwaitArrival();
    EXPECT_EQ(only().begun, 1) << "another attempt runs beside the first";
    return call;
  }
};

TEST_F(LostAttemptTest, TheNextAttemptBeginsWhenTheHandlerOfALostLinkHasEnded) {
  for (const int executors : {1, 2}) {
    SCOPED_TRACE(executors);
    executors_ = executors;
    Start(1);
    Stall stall;
    JoinHandle<absl::Status> call = LoseFirst(stall);
    stall.End();
    EXPECT_EQ(call.Join(), absl::OkStatus());
    EXPECT_EQ(only().begun, 2);
    EXPECT_EQ(only().most_at_once, 1);
    TearDown();
  }
}

TEST_F(LostAttemptTest, ItsNameMayTravelBesideTheFrame) {
  Start(1);
  Stall stall;
  JoinHandle<absl::Status> call =
      LoseFirst(stall, {.metadata = {{"filler", std::string(2 * kMaxContextInFrame, 'f')}}});
  stall.End();
  EXPECT_EQ(call.Join(), absl::OkStatus());
  EXPECT_EQ(only().begun, 2);
  EXPECT_EQ(only().most_at_once, 1);
}

TEST_F(LostAttemptTest, ACallsDeadlineEndsTheServersWait) {
  Start(1);
  Stall stall;
  JoinHandle<absl::Status> call = LoseFirst(stall, {.deadline = 10min});
  Pass(10min);
  const absl::Status status = call.Join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  AwaitArrival();
  EndStall(stall, only());
  AwaitArrival();
  EXPECT_EQ(only().begun, 1) << "an attempt that was given up while it waited has run";
  EXPECT_EQ(members_[0]->server->stats().given_up, 1u);
  EXPECT_EQ(Put().Join(), absl::OkStatus());
}

TEST_F(LostAttemptTest, AServerThatShutsDownRefusesTheAttemptThatWaits) {
  Start(1);
  Stall stall;
  JoinHandle<absl::Status> call = LoseFirst(stall, {.deadline = 10min});
  EXPECT_EQ(members_[0]->server->Shutdown(Duration::zero()).size(), 1u) << "the first handler";
  Pass(10min);
  const absl::Status status = call.Join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  EXPECT_EQ(only().begun, 1);
  EndStall(stall, only());
}

// Two rogues speak for clients. The call of the first runs until it is cancelled.
class NamedAttemptTest : public RuntimePair {
 protected:
  void SetUp() override { Start({}); }
  void Start(ServerOptions options) {
    server_runtime_ = StartRuntime({.device = RogueDevice()});
    ServeWith(store_, std::move(options));
    rogue_runtime_ = StartRuntime({.device = RogueDevice()});
    store_.handler = [](ServerContext&, int attempt) -> Task<absl::Status> {
      co_return attempt == 1 ? co_await SleepUntil(kNever) : absl::OkStatus();
    };
    first_ = std::make_unique<RoguePeer>(*rogue_runtime_);
    first_->ConnectTo(server_->address());
    first_->Send(EncodeSend(kCorrect, {Request(kPut, 3, 7)}));
    (void)server_runtime_->BlockOn(store_.begun.Until(1));
  }
  void TearDown() override {
    second_.reset();
    first_.reset();
    rogue_runtime_.reset();
    StopAll();
  }
  EarlierAttempt first() const {
    return {.link = first_->server_identity(), .slot = 3, .generation = 7};
  }
  // The second rogue speaks for a client with that id.
  void ConnectAs(const RuntimeId& client, uint64_t features = kSupportedFeatures) {
    second_ = std::make_unique<RoguePeer>(*rogue_runtime_);
    second_->runtime_id = client;
    second_->features = features;
    second_->ConnectTo(server_->address());
  }
  // The second rogue sends a request that names `earlier`.
  void SendNaming(std::vector<EarlierAttempt> earlier) {
    CallContext context;
    context.earlier = std::move(earlier);
    std::string body(context.encoded_bytes(), '\0');
    context.Encode(body.data());
    RogueFrame request = Request(kPut, 0, 0, std::move(body));
    request.header.flags = kFrameHasContext;
    second_->Send(EncodeSend(kCorrect, {request}));
  }
  // All of that, and the request has a good answer.
  void Repeat(const RuntimeId& client, std::vector<EarlierAttempt> earlier) {
    ConnectAs(client);
    SendNaming(std::move(earlier));
    const std::vector<RogueFrame> frames = second_->Receive();
    ASSERT_EQ(frames.front().header.kind, FrameKind::kResponse);
    EXPECT_EQ(frames.front().header.status_code, 0);
  }

  static constexpr const char* kPut = "verbena.testing.Payloads/Put";
  Store store_;
  std::unique_ptr<Runtime> rogue_runtime_;
  std::unique_ptr<RoguePeer> first_;
  std::unique_ptr<RoguePeer> second_;
};

TEST_F(NamedAttemptTest, AClientEndsItsOwnAttempt) {
  Repeat(first_->runtime_id, {first()});
  EXPECT_TRUE(first_->IsDropped());
  EXPECT_EQ(store_.ended, 2);
  EXPECT_EQ(store_.most_at_once, 1);
}

TEST_F(NamedAttemptTest, AnAttemptMayBeNamedAgainAndAgain) {
  EarlierAttempt beside_it = first();
  ++beside_it.slot;
  Repeat(first_->runtime_id, {first(), beside_it, first(), first()});
  EXPECT_TRUE(first_->IsDropped());
  EXPECT_EQ(store_.ended, 2);
  EXPECT_EQ(store_.most_at_once, 1);
}

TEST_F(NamedAttemptTest, AClientEndsNoAttemptOfAnotherOne) {
  Repeat(RuntimeId::Random(), {first()});
  EXPECT_EQ(store_.ended, 1) << "the first one runs on";
  EXPECT_EQ(store_.most_at_once, 2);
}

TEST_F(NamedAttemptTest, LinksThatTheServerDoesNotKnowHaveNoCallLeft) {
  EarlierAttempt elsewhere = first();
  elsewhere.executor = 1;  // there is one, 0
  EarlierAttempt far_away = first();
  far_away.executor = 65535;
  EarlierAttempt unknown = first();
  ++unknown.link;
  Repeat(first_->runtime_id, {elsewhere, far_away, unknown, {.slot = 65535}});
  EXPECT_EQ(store_.ended, 1) << "the first one runs on";
  EXPECT_EQ(store_.most_at_once, 2);
}

TEST_F(NamedAttemptTest, AClientThatNamesItsPresentLinkLosesThatAlone) {
  ConnectAs(first_->runtime_id);
  // The name is that of the request itself.
  SendNaming({{.link = second_->server_identity(), .slot = 0, .generation = 0}});
  EXPECT_TRUE(second_->IsDropped());
  EXPECT_EQ(store_.begun, 1);
  Repeat(first_->runtime_id, {first()});
  EXPECT_EQ(store_.ended, 2);
}

TEST_F(NamedAttemptTest, AClientThatDoesNotKnowNamesMaySendNone) {
  ConnectAs(first_->runtime_id, kSupportedFeatures & ~kFeatureEarlierAttempts);
  SendNaming({first()});
  EXPECT_TRUE(second_->IsDropped());
  EXPECT_EQ(store_.begun, 1);
  EXPECT_EQ(store_.ended, 0) << "the first one runs on";
}

// Its request may be on its way, and must not begin afterwards.
TEST_F(NamedAttemptTest, ALinkIsKnownBeforeItsFirstFrameAndTheEndOfItsHandshake) {
  RoguePeer silent(*rogue_runtime_);
  silent.runtime_id = first_->runtime_id;
  silent.ConnectTo(server_->address(), /*confirms=*/false);
  Repeat(first_->runtime_id, {{.link = silent.server_identity(), .slot = 0, .generation = 0}});
  silent.Send(EncodeSend(kCorrect, {Request(kPut, 0, 0)}));
  silent.Confirm();
  EXPECT_TRUE(silent.IsDropped());
  EXPECT_EQ(store_.begun, 2) << "a request was served over a link that was named";
}

class NamedAttemptInTurnTest : public NamedAttemptTest {
 protected:
  void SetUp() override { Start({.admission = {.max_running = 1, .max_queue_age = 1h}}); }
};

TEST_F(NamedAttemptInTurnTest, AnAttemptEndsTheEarlierOneWhoseTurnItTakes) {
  Repeat(first_->runtime_id, {first()});
  EXPECT_TRUE(first_->IsDropped());
  EXPECT_EQ(store_.ended, 2);
  EXPECT_EQ(store_.most_at_once, 1);
}

// Rogues speak for a server. Each link may lead to another process of it.
class RestartedServerTest : public RuntimePair {
 protected:
  void SetUp() override {
    rogue_runtime_ = StartRuntime({.device = RogueDevice()});
    listener_ = CoreOf(*rogue_runtime_).shard(0).bootstrap().Listen("127.0.0.1:0").value();
    // These limits are so long that no silence ends a link.
    LinkLimits limits = RoguesLimits();
    limits.ping_interval = limits.connect_timeout = 1h;
    client_runtime_ = StartRuntime({.device = RogueDevice(), .limits = limits});
    ChannelOptions options;
    options.service_config = {
        .methods = {{.name = "verbena.testing.Payloads",
                     .retry = RetryPolicy{.max_attempts = 5,
                                          .initial_backoff = 1ms,
                                          .max_backoff = 1ms,
                                          .retryable_codes = {absl::StatusCode::kUnavailable}}}}};
    channel_ =
        std::make_unique<Channel>(*client_runtime_, listener_->address(), std::move(options));
  }
  void TearDown() override {
    StopAll();
    rogue_.reset();
    listener_.reset();
    rogue_runtime_.reset();
  }

  Task<absl::Status> Put() {
    const testing::Payloads::Stub stub(*channel_);
    co_return (co_await stub.Put(testing::PutRequest(), {.deadline = 1min, .wait_for_ready = true}))
        .status();
  }
  // The client loses its link, and makes one to the server's process of that incarnation. Returns
  // the attempts that the call's next request names there.
  std::vector<EarlierAttempt> NamedAt(uint64_t incarnation) {
    rogue_.reset();
    rogue_ = std::make_unique<RoguePeer>(*rogue_runtime_);
    rogue_->incarnation = incarnation;
    rogue_->AcceptFrom(*listener_);
    request_ = rogue_->Receive()[0];
    EXPECT_EQ(request_.header.kind, FrameKind::kRequest);
    CallContext context;
    if ((request_.header.flags & kFrameHasContext) != 0) {
      const char* const body = request_.body.data();
      const absl::StatusOr<ContextHeader> header = ParseContextHeader(body, request_.body.size());
      EXPECT_EQ(header.status(), absl::OkStatus());
      EXPECT_EQ(ParseContext(body, header.value().block_bytes, context), absl::OkStatus());
    }
    return context.earlier;
  }
  void AnswerLast() {
    rogue_->Send(EncodeSend(
        kCorrect, {Response(request_.header.call_slot, request_.header.call_generation)}));
  }

  std::unique_ptr<Runtime> rogue_runtime_;
  std::unique_ptr<MessageListener> listener_;
  std::unique_ptr<RoguePeer> rogue_;
  RogueFrame request_;  // the last one
};

// When a server's process ends, all that it ran has ended.
TEST_F(RestartedServerTest, AnAttemptIsNamedAtItsIncarnationAlone) {
  JoinHandle<absl::Status> call = client_runtime_->Spawn(Put());
  EXPECT_EQ(NamedAt(1).size(), 0u);
  EXPECT_EQ(NamedAt(1).size(), 1u) << "its process may still run the first attempt";
  EXPECT_EQ(NamedAt(2).size(), 0u);
  AnswerLast();
  EXPECT_EQ(call.Join(), absl::OkStatus());
}

// Destroys the handler of the first call with a name when a test says so.
class DestroyingServerInterceptor final : public ServerInterceptor {
 public:
  Watched<bool> may_destroy;
  Watched<bool> destroyed;

 private:
  Task<absl::Status> Intercept(ServerCallView& call, ServerNext next) override {
    if (destroyed || !call.context().dedupe_id().has_value()) co_return co_await next();
    {
      TaskScope rest(co_await CurrentContext());
      rest.Spawn(Ignored(next()));
      (void)co_await may_destroy.Until(true);
    }
    destroyed = true;
    co_return absl::UnavailableError("an interceptor has destroyed the handler");
  }
  static Task<void> Ignored(Task<absl::Status> rest) { (co_await std::move(rest)).IgnoreError(); }
};

// The first attempt of a deduplicated call loses its link while its handler writes. The handler
// leaves the write and ends, and a second attempt comes.
class DedupedAttemptTest : public CounterTest {
 protected:
  using Call = JoinHandle<absl::StatusOr<uint64_t>>;
  using End = AnyHandler<ServerContext&>;

  class EmptyStore final : public DedupeStore {
   public:
    Task<absl::StatusOr<std::optional<DedupeResult>>> Lookup(RequestId) override {
      co_return std::nullopt;
    }
  };

  void Start(std::shared_ptr<ServerInterceptor> interceptor = nullptr) {
    server_runtime_ = StartRuntime({}, breaker_.device());
    disk_ = server_runtime_->BlockOn(HeldWrites::Install(server_runtime_->executor(0)));
    ServerOptions options;
    if (interceptor != nullptr) options.interceptors.push_back(std::move(interceptor));
    options.dedupe.store = &store_;
    ServeWith(service_, std::move(options));
    client_runtime_ = StartRuntime({}, breaker_.device());
    const MethodConfig config = {
        .retry = RetryPolicy{.max_attempts = 3,
                             .initial_backoff = 1ms,
                             .max_backoff = 1ms,
                             .retryable_codes = {absl::StatusCode::kUnavailable,
                                                 absl::StatusCode::kInternal,
                                                 absl::StatusCode::kAborted}},
        .wait_for_ready = true};
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address(),
                                         ChannelOptions{.service_config = {.methods = {config}}});
    stub_ = std::make_unique<testing::Counter::Stub>(*channel_);
  }
  void TearDown() override {
    if (disk_ != nullptr) EndWrites();
    stub_.reset();
    StopAll();
  }

  // The handler of the first run writes until it may leave its write, and then ends by `end`.
  Call LoseFirst(End end) {
    service_.handler = [this, end = std::move(end)](ServerContext& context,
                                                    const testing::AddRequest&,
                                                    testing::AddReply&) -> Task<absl::Status> {
      if (++begun_ > 1) co_return absl::OkStatus();
      VERBENA_CO_RETURN_IF_ERROR(co_await LeaveAWrite(context));
      ++ended_;
      co_return co_await end(context);
    };
    EXPECT_EQ(Run(Count()), absl::OkStatus()) << "there is a link";
    breaker_.Arm(CallEvent::kHandlerBegins);
    Call call = client_runtime_->Spawn(AddWith({}));
    (void)server_runtime_->BlockOn(disk_->begun.Until(1));
    breaker_.OfHandler(CallEvent::kHandlerBegins);
    return call;
  }
  void EndHandler() {
    may_leave_ = true;
    (void)server_runtime_->BlockOn(ended_.Until(1));
  }
  // Returns when the second attempt has come to the server, and all that the server has answered by
  // then has come to the client.
  void AwaitSecond() {
    // The client notices that its link is lost when it sends something.
    Eventually(
        [this] {
          (void)Run(Count());
          return kept().repeated > 0 || begun_ > 1;
        },
        "the second attempt comes to the server");
    EXPECT_EQ(begun_, 1) << "another run begins beside the write that the first one has left";
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Run(Count()), absl::OkStatus());
  }
  void EndWrites() { (void)server_runtime_->BlockOn(disk_->EndWrites()); }
  absl::Status EndOf(Call call) {
    Eventually([&call] { return call.done(); }, "the call ends");
    call.RequestCancel();
    return call.Join().status();
  }

  // The call ends well when the write has ended, and not before, after so many runs of the handler.
  void ExpectRuns(int runs, Call call) {
    AwaitSecond();
    EXPECT_FALSE(call.done()) << "the end of a run is told while its write goes on";
    EndWrites();
    EXPECT_EQ(EndOf(std::move(call)), absl::OkStatus());
    EXPECT_EQ(begun_, runs);
  }

  Watched<int> begun_;  // runs of the handler
  Watched<int> ended_;

 private:
  // Returns while the write goes on.
  Task<absl::Status> LeaveAWrite(ServerContext& context) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, co_await context.AllocateBuffer(4096));
    VERBENA_CO_ASSIGN_OR_RETURN(File file, co_await File::Open("/dev/null", {.flags = O_RDWR}));
    (void)co_await WhenAny(file.Write(block.view(), 0), may_leave_.Until(true));
    co_return absl::OkStatus();
  }
  Task<absl::Status> Count() { co_return (co_await stub_->Count(testing::AddRequest())).status(); }

  EmptyStore store_;
  HeldWrites* disk_ = nullptr;
  Watched<bool> may_leave_;
};

TEST_F(DedupedAttemptTest, ACallWhoseHandlerCannotTellRunsAgainWhenItsWriteHasEnded) {
  Start();
  Call call = LoseFirst([](ServerContext& context) -> Task<absl::Status> {
    co_return context.MaybeExecuted(absl::UnavailableError("the disk hangs"));
  });
  EndHandler();
  ExpectRuns(2, std::move(call));
}

TEST_F(DedupedAttemptTest, ACallWhoseHandlerThrewRunsAgainWhenItsWriteHasEnded) {
  Start();
  Call call = LoseFirst([](ServerContext&) -> Task<absl::Status> {
    throw 7;
    co_return absl::OkStatus();
  });
  EndHandler();
  ExpectRuns(2, std::move(call));
}

TEST_F(DedupedAttemptTest, AKeptResultIsToldWhenTheWriteOfItsHandlerHasEnded) {
  Start();
  Call call = LoseFirst([](ServerContext&) -> Task<absl::Status> { co_return absl::OkStatus(); });
  EndHandler();
  ExpectRuns(1, std::move(call));
}

TEST_F(DedupedAttemptTest, ACallWhoseHandlerWasDestroyedRunsAgainWhenItsWriteHasEnded) {
  const auto interceptor = std::make_shared<DestroyingServerInterceptor>();
  Start(interceptor);
  Call call = LoseFirst([](ServerContext&) -> Task<absl::Status> { co_return absl::OkStatus(); });
  interceptor->may_destroy = true;
  (void)server_runtime_->BlockOn(interceptor->destroyed.Until(true));
  ExpectRuns(2, std::move(call));
  EXPECT_EQ(ended_, 0);
}

// The server ends when the write has ended.
TEST_F(DedupedAttemptTest, AShutdownCountsARunWhoseWriteGoesOnAndDoesNotWaitForIt) {
  Start();
  Call call = LoseFirst([](ServerContext&) -> Task<absl::Status> { co_return absl::OkStatus(); });
  EndHandler();
  AwaitSecond();
  EXPECT_EQ(server_->Shutdown(Duration::zero()).size(), 1u) << "the method of the first attempt";
  call.RequestCancel();
  EXPECT_FALSE(call.Join().ok()) << "the second attempt had no result to wait for";
  EXPECT_EQ(begun_, 1);
}

}  // namespace further_attempt_test
}  // namespace verbena::internal
