// A channel that retries a deduplicated call gives all attempts one name, keeps them at the server
// that may have run it, and does not ask again for a failure that the server keeps.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/rpc/counter_service.h"
#include "tests/rpc/first_device.h"
#include "tests/rpc/watched_device.h"
#include "tests/support/moved_clock.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/base/status.h"

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

// The server's memory for responses is taken until the second attempt begins. The test ends the
// wait for it by moving the server's clock.
TEST_F(DedupeRetryTest, AResultWhoseReplyFoundNoMemoryComesWithTheNextAttempt) {
  constexpr size_t kAll = 1 << 20;
  MovedClock clock;
  RuntimeOptions options;
  options.clock = &clock;
  options.limits.ping_interval = options.limits.connect_timeout = 1000h;
  options.limits.idle_timeout = Duration::zero();
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

TEST_F(DedupeRetryTest, AnAttemptThatIsCutOffLeavesTheCallToTheNext) {
  // Attempts are cut off when the test moves their clock, so that the second one waits as long as
  // it has to.
  MovedClock clock;
  RuntimeOptions runtime;
  runtime.clock = &clock;
  runtime.limits.ping_interval = runtime.limits.connect_timeout = 1000h;
  runtime.limits.idle_timeout = Duration::zero();
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
