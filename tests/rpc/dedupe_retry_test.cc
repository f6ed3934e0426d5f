// A channel that retries a deduplicated call gives all attempts one name, keeps them at the server
// that may have run it, and does not ask again for a failure that the server keeps.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/rpc/counter_service.h"
#include "tests/rpc/first_device.h"
#include "tests/rpc/watched_device.h"
#include "tests/support/moved_clock.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/memory/buffer_pool.h"

namespace verbena::internal {
namespace dedupe_retry_test {

using namespace std::chrono_literals;

class DedupeRetryTest : public CounterTest {
 protected:
  void StartClientOf(const std::string& target, Duration attempt_timeout = {},
                     RuntimeOptions runtime = {}) {
    client_runtime_ = StartRuntime(std::move(runtime), breaker_.device());
    const MethodConfig config = {.retry = RetryPolicy{.max_attempts = 5,
                                                      .initial_backoff = 1ms,
                                                      .max_backoff = 10ms,
                                                      .attempt_timeout = attempt_timeout},
                                 .wait_for_ready = true};
    channel_ = std::make_unique<Channel>(*client_runtime_, target,
                                         ChannelOptions{.service_config = {.methods = {config}}});
    stub_ = std::make_unique<testing::Counter::Stub>(*channel_);
  }
  void StopClient() {
    stub_.reset();
    channel_.reset();
    client_runtime_.reset();
  }
  Task<absl::StatusOr<size_t>> ReadyServers() {
    VERBENA_CO_RETURN_IF_ERROR(co_await channel_->Connect());
    VERBENA_CO_ASSIGN_OR_RETURN(const std::vector<ChannelServer> servers, channel_->Servers());
    co_return std::count_if(servers.begin(), servers.end(), [](const ChannelServer& each) {
      return each.state == ChannelServer::State::kReady;
    });
  }
  // Without memory windows a lease ends at once.
  Task<bool> HasWindows() {
    co_return FirstDeviceOf(*client_runtime_).capabilities().memory_windows;
  }
  uint64_t retries() const { return channel_->retry_stats().retries; }
};

TEST_F(DedupeRetryTest, AResultThatWasLostOnItsWayComesWithTheNextAttempt) {
  StartServer();
  StartClientOf(server_->address());
  breaker_.Arm(CallEvent::kResponsePosted);
  EXPECT_EQ(Run(AddWith({})).value(), 1u);
  EXPECT_EQ(service_.runs, 1u);
  EXPECT_EQ(kept().repeated, 1u);
  EXPECT_EQ(retries(), 1u);
}

TEST_F(DedupeRetryTest, ACallersTokenIsThatOfAllAttempts) {
  StartServer();
  StartClientOf(server_->address());
  const Token token(*this);
  breaker_.Arm(CallEvent::kResponsePosted);
  EXPECT_EQ(Add(*token).value(), 1u);
  EXPECT_EQ(Add(*token).value(), 1u) << "as the caller repeats it";
  EXPECT_EQ(service_.last_name, token->id());
  EXPECT_EQ(kept().repeated, 2u);
}

TEST_F(DedupeRetryTest, ACallThatWasRefusedHasTheSameNameInTheNextAttempt) {
  StartServer();
  StartClientOf(server_->address());
  std::vector<uint64_t> names;
  service_.handler = [&names](ServerContext& context, const testing::AddRequest&,
                              testing::AddReply&) -> Task<absl::Status> {
    names.push_back(context.dedupe_id()->number);
    if (names.size() > 2) co_return absl::OkStatus();
    co_return context.NotExecuted(absl::UnavailableError("not the leader"));
  };
  EXPECT_EQ(Run(AddWith({})).value(), 3u);
  EXPECT_EQ(names, std::vector<uint64_t>(3, names.front()));
}

TEST_F(DedupeRetryTest, AFailureThatTheServerKeepsIsNotAskedForAgain) {
  StartServer();
  StartClientOf(server_->address());
  service_.handler = [](ServerContext&, const testing::AddRequest&,
                        testing::AddReply&) -> Task<absl::Status> {
    co_return absl::UnavailableError("the disk is full");
  };
  const absl::Status failed = Run(AddWith({})).status();
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_EQ(OutcomeOf(failed), Outcome::kExecuted);
  EXPECT_EQ(retries(), 0u);
  EXPECT_EQ(kept().repeated, 0u);
}

// The server grants no landings, so the client lends it the memory of the request. That lease ends
// after the response has come.
TEST_F(DedupeRetryTest, AResultWhosePayloadWasNotSafeComesWithTheNextAttempt) {
  LinkLimits limits;
  limits.leases.granted_bytes_per_client = 0;
  StartServer({}, limits);
  StartClientOf(server_->address());
  const auto swap = [this]() -> Task<absl::StatusOr<size_t>> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel_->AllocateBuffer(256 << 10));
    auto reply = co_await stub_->Swap(testing::AddRequest(), {.request_payload = std::move(buffer),
                                                              .max_response_payload = 256 << 10});
    if (!reply.ok()) co_return reply.status();
    co_return reply->payload.size();
  };
  EXPECT_EQ(Run(swap()).value(), size_t{256} << 10);
  breaker_.Arm(CallEvent::kResponseArrived);
  EXPECT_EQ(Run(swap()).value(), size_t{256} << 10);
  EXPECT_EQ(breaker_.broken(), 1);
  EXPECT_EQ(service_.runs, 2u);
  EXPECT_EQ(retries(), Run(HasWindows()) ? 1u : 0u);
}

// Ends something when the third call begins.
class AtTheThird final : public ServerInterceptor {
 public:
  Task<absl::Status> Intercept(ServerCallView&, ServerNext next) override {
    if (++calls == 3) held = Buffer();
    co_return co_await next();
  }

  std::atomic<int> calls = 0;
  Buffer held;
};

// Options of a runtime that has `clock`. Its links do not end because time passes there.
RuntimeOptions OptionsOn(Clock& clock) {
  RuntimeOptions options;
  options.clock = &clock;
  options.limits.ping_interval = options.limits.connect_timeout = 1000h;
  options.limits.idle_timeout = Duration::zero();
  return options;
}

// The server's memory for responses is taken until the second attempt begins. The test ends the
// wait for it by moving the server's clock.
TEST_F(DedupeRetryTest, AResultWhoseReplyFoundNoMemoryComesWithTheNextAttempt) {
  constexpr size_t kAll = 1 << 20;
  MovedClock clock;
  RuntimeOptions options = OptionsOn(clock);
  options.limits.memory.send_bytes = kAll;
  options.limits.max_payload_bytes = kAll / 2;
  server_runtime_ = StartRuntime(std::move(options), breaker_.device());
  const auto at_third = std::make_shared<AtTheThird>();
  ServeWith(service_, {.max_response_bytes_per_client = kAll,
                       .max_response_bytes_per_source = kAll,
                       .memory_wait = 10s,
                       .interceptors = {at_third},
                       .dedupe = {.keep_for = 1000h}});
  StartClientOf(server_->address());
  service_.handler = [&](ServerContext& context, const testing::AddRequest& request,
                         testing::AddReply& reply) -> Task<absl::Status> {
    if (request.call() == 1) {
      VERBENA_CO_ASSIGN_OR_RETURN(at_third->held, co_await context.AllocateBuffer(kAll));
    }
    reply.set_filler(std::string(request.call() == 1 ? 0 : kAll / 8, 'r'));
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(AddWith({}, 1)).value(), 1u);
  JoinHandle<absl::StatusOr<uint64_t>> call = client_runtime_->Spawn(AddWith({}, 2));
  // Nobody tells when the reply begins to wait. The server's executor looks at its clock when
  // somebody asks it.
  const auto ends = [&] {
    if (at_third->calls < 3) clock.Advance(10s);
    (void)server_->stats();
    return call.done();
  };
  Eventually(ends, "the call ends");
  EXPECT_EQ(call.Join().value(), 2u);
  EXPECT_EQ(service_.runs, 2u);
  EXPECT_EQ(retries(), 1u);
  EXPECT_EQ(kept().repeated, 1u);
  StopClient();
  server_.reset();
  server_runtime_.reset();
}

// The response of a call comes, and its payload is lost at the client. There is no RetryPolicy: the
// test makes the next attempt.
class LostPayloadTest : public DedupeRetryTest {
 protected:
  ~LostPayloadTest() override { StopClient(); }

  void StartClientWith(RuntimeOptions options) {
    client_runtime_ =
        StartRuntime(std::move(options),
                     {.open = OpenerOfWatched([this](CallEvent event, WatchedDevice&, uint32_t) {
                        if (event == CallEvent::kResponseArrived && on_response_) on_response_();
                      })});
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
    stub_ = std::make_unique<testing::Counter::Stub>(*channel_);
  }
  // A call with a payload of `bytes`, which comes back. Before it is sent, `sends` is called with
  // the memory for the response; an empty Buffer leaves that to the call.
  Task<absl::Status> Swap(
      DedupeToken& token, size_t bytes, std::function<void(Buffer&)> sends = [](Buffer&) {}) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload, co_await channel_->AllocateBuffer(bytes));
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer into, co_await channel_->AllocateBuffer(bytes));
    std::memset(payload.data(), 'p', bytes);
    sends(into);
    CallOptions options{.request_payload = std::move(payload), .dedupe = &token};
    if (into) {
      options.response_payload_into = std::move(into);
    } else {
      options.max_response_payload = bytes;
    }
    auto reply = co_await stub_->Swap(testing::AddRequest(), std::move(options));
    VERBENA_CO_RETURN_IF_ERROR(reply.status());
    EXPECT_EQ(reply->payload.size(), bytes);
    EXPECT_EQ(reply->payload.data()[bytes - 1], 'p');
    co_return absl::OkStatus();
  }
  void ExpectResultWithNextAttempt(DedupeToken& token, size_t bytes) {
    on_response_ = nullptr;
    EXPECT_EQ(Run(Swap(token, bytes)), absl::OkStatus());
    EXPECT_EQ(service_.runs, 1u);
    EXPECT_EQ(kept().repeated, 1u);
  }

  MovedClock clock_;
  // On the client's executor; set while no call runs.
  std::function<void()> on_response_;
};

TEST_F(LostPayloadTest, OneThatFoundNoMemoryComesWithTheNextAttempt) {
  constexpr size_t kAll = 1 << 20;
  constexpr size_t kInFrame = 3000;
  RuntimeOptions options = OptionsOn(clock_);
  options.limits.memory.landing_bytes = kAll;
  options.limits.max_payload_bytes = kAll / 2;
  StartServer();
  StartClientWith(std::move(options));
  const Token token(*this);
  auto swap = [&]() -> Task<absl::Status> {
    BufferPool& pool = PayloadMemoryOf(*client_runtime_)->landing();
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer all, co_await pool.Allocate(kAll));
    absl::Status status;
    bool ended = false;
    TaskScope scope(client_runtime_->executor(0));
    scope.Spawn([&]() -> Task<void> {
      status = co_await Swap(*token, kInFrame, [](Buffer& into) { into = Buffer(); });
      ended = true;
    });
    while (pool.stats().waiting == 0 && !ended) (void)co_await Pause();
    EXPECT_FALSE(ended) << "there is no memory";
    clock_.Advance(kMaxMemoryWait);
    co_await scope.Join();
    co_return status;
  };
  const absl::Status lost = Run(swap());
  EXPECT_TRUE(absl::IsResourceExhausted(lost)) << lost;
  EXPECT_EQ(OutcomeOf(lost), Outcome::kMaybeExecuted);
  ExpectResultWithNextAttempt(*token, kInFrame);
}

constexpr size_t kBesideFrame = 256 << 10;

TEST_F(LostPayloadTest, OneThatArrivedChangedComesWithTheNextAttempt) {
  LinkLimits limits;
  limits.payload_checksum = PayloadChecksum::kOn;
  StartServer({}, limits);
  StartClientWith({.limits = limits});
  const Token token(*this);
  const absl::Status lost = Run(Swap(*token, kBesideFrame, [&](Buffer& into) {
    // The payload is there before the response.
    on_response_ = [arrived = into.data()] { arrived[100] ^= 1; };
  }));
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  EXPECT_EQ(OutcomeOf(lost), Outcome::kMaybeExecuted);
  ExpectResultWithNextAttempt(*token, kBesideFrame);
}

// As in AResultWhosePayloadWasNotSafe…, the lease of the request's memory ends after the response.
TEST_F(LostPayloadTest, OneWhoseCallIsCancelledBeforeItWasSafeComesWithTheNextAttempt) {
  LinkLimits limits;
  limits.leases.granted_bytes_per_client = 0;
  StartServer({}, limits);
  StartClientWith({});
  const Token token(*this);
  auto swap = [&]() -> Task<absl::Status> {
    Event arrived;
    absl::Status status;
    TaskScope scope(client_runtime_->executor(0));
    scope.Spawn([&]() -> Task<void> {
      status = co_await Swap(*token, kBesideFrame,
                             [&](Buffer&) { on_response_ = [&] { arrived.Set(); }; });
    });
    // This coroutine goes on before the one that makes the call: both wait for the response.
    (void)co_await arrived.Wait();
    scope.RequestCancel();
    co_await scope.Join();
    co_return status;
  };
  const absl::Status lost = Run(swap());
  if (!Run(HasWindows())) {
    EXPECT_EQ(lost, absl::OkStatus());
    return;
  }
  EXPECT_TRUE(absl::IsCancelled(lost)) << lost;
  EXPECT_EQ(OutcomeOf(lost), Outcome::kMaybeExecuted);
  ExpectResultWithNextAttempt(*token, kBesideFrame);
}

TEST_F(DedupeRetryTest, AnAttemptThatIsCutOffLeavesTheCallToTheNext) {
  // Attempts are cut off when the test moves their clock, so that the second one waits as long as
  // it has to.
  MovedClock clock;
  RuntimeOptions runtime = OptionsOn(clock);
  StartServer();
  StartClientOf(server_->address(), /*attempt_timeout=*/1h, std::move(runtime));
  EXPECT_TRUE(Run(AwaitLink()).ok());
  std::atomic<bool> released = false;
  service_.handler = [&released](ServerContext&, const testing::AddRequest&,
                                 testing::AddReply&) -> Task<absl::Status> {
    while (!released) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    co_return absl::OkStatus();
  };
  JoinHandle<absl::StatusOr<uint64_t>> call = client_runtime_->Spawn(AddWith({.deadline = 100h}));
  Eventually([this] { return service_.runs == 1; }, "the first attempt runs");
  clock.moved_by = 1h;
  Eventually([this] { return kept().repeated >= 1; }, "the second attempt waits");
  released = true;
  EXPECT_EQ(call.Join().value(), 1u);
  EXPECT_EQ(service_.runs, 1u);
  StopClient();
}

class TwoServersTest : public DedupeRetryTest {
 protected:
  CounterService other_;
  std::unique_ptr<Server> other_server_;
};

// The other server could not prove that the call has not run.
TEST_F(TwoServersTest, ACallThatMayHaveRunStaysWithItsServer) {
  StartServer();
  other_server_ = *Server::Start(*server_runtime_, {&other_});
  StartClientOf("static:" + server_->address() + "," + other_server_->address());
  Eventually([this] { return Run(ReadyServers()).value_or(0) == 2; }, "both servers are ready");
  for (uint64_t call = 1; call <= 4; ++call) {
    breaker_.Arm(CallEvent::kResponsePosted);
    const absl::Status status = Run(AddWith({}, call)).status();
    EXPECT_EQ(status, absl::OkStatus()) << call;
    EXPECT_EQ(service_.runs + other_.runs, call);
    EXPECT_EQ(kept().repeated + other_server_->stats().dedupe.repeated, call);
  }
}

}  // namespace dedupe_retry_test
}  // namespace verbena::internal
