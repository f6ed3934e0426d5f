// A request waits no longer than ServerOptions::memory_wait in all, whether for its client's share
// or for memory.

#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "tests/rpc/payload_service.h"
#include "tests/support/moved_clock.h"
#include "tests/support/watched.h"

namespace verbena::internal {
namespace {

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
  keeping_.kept.clear();
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
}

}  // namespace
}  // namespace verbena::internal
