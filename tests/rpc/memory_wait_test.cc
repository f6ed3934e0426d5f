// A request waits no longer than ServerOptions::memory_wait in all, whether for its client's share
// or for memory. A client that waits for memory of its own does not blame its server.

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rpc/first_device.h"
#include "tests/rpc/payload_service.h"
#include "tests/support/moved_clock.h"
#include "tests/support/watched.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/client/channel.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/shard/runtime.h"

namespace verbena::internal {
namespace memory_wait_test {

using std::chrono::hours;
using std::chrono::minutes;

constexpr size_t kBudget = 1 << 20;

// Keeps the memory of its requests; its handlers wait until the test lets them end.
class KeepingService final : public testing::Payloads::Service {
 public:
  Task<absl::Status> Put(ServerContext& context, const testing::PutRequest&,
                         testing::PutReply&) override {
    kept.push_back(context.TakeRequestPayload());
    ++begun;
    VERBENA_CO_RETURN_IF_ERROR(co_await may_end.Until(true));
    co_return absl::OkStatus();
  }

  std::vector<Buffer> kept;  // read when no call runs
  std::atomic<int> begun{0};
  Watched<bool> may_end;
};

class MemoryWaitTest : public PayloadFixture {
 protected:
  struct Ended {
    std::atomic<bool> done{false};
    absl::Status status;
  };

  static Task<void> Put(Channel& channel, size_t bytes, Ended& ended) {
    ended.status = co_await PutOnce(channel, bytes);
    ended.done = true;
  }
  static Task<absl::Status> PutOnce(Channel& channel, size_t bytes) {
    testing::Payloads::Stub stub(channel);
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel.AllocateBuffer(bytes));
    testing::PutReply reply;
    co_return co_await stub.Put(testing::PutRequest(), reply,
                                {.request_payload = std::move(buffer)});
  }

  MovedClock clock_;
  KeepingService keeping_;
};

// The first wait is for what its client may have, the second for memory that another client has.
TEST_F(MemoryWaitTest, AWaitForAShareAndOneForMemoryHaveOneLimit) {
  LinkLimits limits;
  limits.memory.receive_bytes = kBudget;
  limits.leases.granted_bytes_per_client = 0;
  limits.ping_interval = limits.connect_timeout = hours(100);
  limits.idle_timeout = Duration::zero();
  server_runtime_ = StartRuntime({.limits = limits, .clock = &clock_});
  ServeWith(keeping_, {.max_bytes_per_client = kBudget,
                       .max_bytes_per_source = 4 * kBudget,
                       .memory_wait = hours(2)});
  StartClient();
  keeping_.may_end = true;
  Ended first, second, others;
  client_runtime_->Spawn(Put(*channel_, kBudget, first));
  Eventually([&] { return first.done.load(); }, "the server keeps all of a client's share");
  client_runtime_->Spawn(Put(*channel_, kBudget / 2, second));
  Eventually([this] { return server_->stats().calls == 2; }, "a request waits for its share");
  const std::unique_ptr<Runtime> other_runtime = StartRuntime();
  Channel other(*other_runtime, server_->address());
  other_runtime->Spawn(Put(other, kBudget, others));
  Eventually([this] { return server_->stats().receive_memory.waiting == 1; },
             "another client's request waits for memory");
  clock_.moved_by = minutes(90);
  // Emptied before its memory is free: a handler that this lets run adds its own at once.
  (void)std::exchange(keeping_.kept, {});
  Eventually([&] { return others.done && server_->stats().receive_memory.waiting == 1; },
             "it waits for memory");
  EXPECT_FALSE(second.done);
  clock_.moved_by = minutes(121);
  Eventually([&] { return second.done.load(); }, "its wait is over");
  EXPECT_EQ(first.status, absl::OkStatus());
  EXPECT_EQ(others.status, absl::OkStatus());
  EXPECT_EQ(second.status.code(), absl::StatusCode::kResourceExhausted) << second.status;
  EXPECT_EQ(OutcomeOf(second.status), Outcome::kNotExecuted);
  keeping_.kept.clear();
  StopBoth();
}

// No handler has seen it, so its client may try another server, as by a RetryPolicy's defaults.
TEST_F(MemoryWaitTest, ARequestThatWaitsAtTheEndOfAShutdownsGraceIsRefused) {
  LinkLimits limits;
  limits.memory.receive_bytes = kBudget;
  limits.leases.granted_bytes_per_client = 0;
  server_runtime_ = StartRuntime({.limits = limits, .clock = &clock_});
  ServeWith(keeping_, {.max_bytes_per_client = kBudget, .memory_wait = hours(2)});
  StartClient();
  keeping_.may_end = true;
  Ended first, second;
  client_runtime_->Spawn(Put(*channel_, kBudget, first));
  Eventually([&] { return first.done.load(); }, "the server keeps all of a client's share");
  client_runtime_->Spawn(Put(*channel_, kBudget / 2, second));
  Eventually([this] { return server_->stats().calls == 2; }, "a request waits for its share");
  // The link must not be closed before the refusal has left.
  clock_.Stop();
  std::thread shutdown([this] { EXPECT_TRUE(server_->Shutdown(Duration::zero()).empty()); });
  Eventually([&] { return second.done.load(); }, "the call ends");
  clock_.GoOn();
  shutdown.join();
  EXPECT_EQ(second.status.code(), absl::StatusCode::kUnavailable) << second.status;
  EXPECT_EQ(OutcomeOf(second.status), Outcome::kNotExecuted);
  EXPECT_NE(second.status.message().find("shutting down"), std::string::npos) << second.status;
  EXPECT_EQ(keeping_.begun, 1);
  keeping_.kept.clear();
  StopBoth();
}

// The server has its answer, and waits for memory of the client's until the deadline.
TEST_F(MemoryWaitTest, AServerThatWaitsForItsClientHasNotFailed) {
  LinkLimits limits;
  limits.memory.landing_bytes = kBudget;
  limits.ping_interval = limits.connect_timeout = hours(100);
  limits.idle_timeout = Duration::zero();
  StartServer();
  StartClient({.limits = limits, .clock = &clock_});
  const auto landing = [this]() -> BufferPool& {
    return PayloadMemoryOf(*client_runtime_)->landing();
  };
  const auto prepare = [&]() -> Task<std::vector<Buffer>> {
    (void)CoreOf(*channel_).Here()->KeepTally();
    co_return co_await TakeAll(landing(), kBudget / 4);
  };
  std::vector<Buffer> taken = Run(prepare());
  const auto get = [this]() -> Task<absl::Status> {
    testing::GetRequest request;
    request.set_bytes(kBudget / 4);
    co_return (co_await stub_->Get(request, {.deadline = hours(1)})).status();
  };
  JoinHandle<absl::Status> call = client_runtime_->Spawn(get());
  const auto waiting = [&]() -> Task<size_t> { co_return landing().stats().waiting; };
  Eventually([&] { return Run(waiting()) == 1; }, "the client waits for memory");
  clock_.moved_by = hours(2);
  const absl::Status status = call.Join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  const auto failures = [&]() -> Task<uint64_t> {
    taken.clear();
    co_return CoreOf(*channel_).Here()->KeepTally().failed;
  };
  EXPECT_EQ(Run(failures()), 0u);
  StopBoth();
}

// Its budget has room, and more of it would not help.
TEST_F(MemoryWaitTest, AWaitTooShortForThePoolToGrowBlamesNoBudget) {
  StartBoth();
  const auto wait = [this]() -> Task<absl::Status> {
    const Endpoint& endpoint = **CoreOf(*client_runtime_).shard(0).EndpointOn(0);
    BufferPool& pool = PayloadMemoryOf(*client_runtime_)->landing();
    co_return (
        co_await AllocateUntil(endpoint, pool, kMaxBufferBytes, {.longest = Duration::zero()}))
        .status();
  };
  const absl::Status status = Run(wait());
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(status.message().find("Raise LinkLimits"), std::string::npos) << status;
}

}  // namespace memory_wait_test
}  // namespace verbena::internal
