// A call may end before its server is done: by a deadline, a cancellation or the death of either
// side. The memory that it leased is then handed out again as soon as the server cannot reach it
// any more, and not before.

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/rpc/open_link.h"
#include "tests/rpc/payload_service.h"
#include "tests/support/moved_clock.h"
#include "tests/support/turn.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace lease_lifetime_test {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kBytes = 100'000;
// How long a handler lingers unless the test lets it go.
constexpr milliseconds kLong = seconds(60);

class LeaseLifetimeTest : public PayloadFixture {
 protected:
  // A call that the server holds until it is cancelled, and `linger` beyond that; then it writes
  // into what it was leased. How it ended, and what came back.
  struct Held {
    absl::Status status;
    bool request_back = false;
    bool response_back = false;
  };
  Task<Held> CallHold(milliseconds linger, Deadline deadline) {
    absl::StatusOr<Buffer> request = co_await Filled(kBytes);
    absl::StatusOr<Buffer> into = co_await channel_->AllocateBuffer(kBytes);
    if (!request.ok() || !into.ok()) co_return Held{absl::InternalError("no memory")};
    std::memset(into->data(), 'A', into->size());
    testing::HoldRequest message;
    message.set_linger_us(static_cast<uint32_t>(linger.count() * 1000));
    Payload payload = *std::move(request);
    WithPayload<testing::PutReply> reply;
    absl::Status status = co_await stub_->Hold(message, reply,
                                               {.deadline = deadline,
                                                .request_payload = std::move(payload),
                                                .response_payload_into = *std::move(into),
                                                .returned_payload = &payload});
    co_return Held{std::move(status), payload.size() > 0, static_cast<bool>(reply.payload)};
  }

  Task<absl::Status> AwaitHolding() {
    while (service_.holding == 0) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    co_return absl::OkStatus();
  }

  // Fills all memory that the client can have, lets the handler go on, and sees that the memory
  // stays as it is until the server is done.
  Task<absl::Status> WatchMemory() {
    const std::vector<Buffer> all = co_await TakeAll(
        (*CoreOf(*client_runtime_).shard(0).EndpointOn(0))->memory().send(), kBytes, /*most=*/400);
    for (const Buffer& buffer : all) std::memset(buffer.data(), 'W', buffer.size());
    if (all.empty()) co_return absl::ResourceExhaustedError("nothing to watch");
    service_.let_go = true;
    const TimePoint limit = Clock::Real().Now() + seconds(60);
    while (co_await LentNow() > 0 && Clock::Real().Now() < limit) (void)co_await Pause();
    for (const Buffer& buffer : all) {
      for (size_t i = 0; i < buffer.size(); ++i) {
        if (buffer.data()[i] != 'W') {
          co_return absl::DataLossError("memory that the application has was written to");
        }
      }
    }
    co_return absl::OkStatus();
  }

  size_t LeasesOfClient() { return HeldBy(*client_runtime_).leases; }
};

TEST_F(LeaseLifetimeTest, AfterADeadlineMemoryStaysLentUntilTheServerIsDone) {
  MovedClock clock;  // the client's
  LinkLimits limits;
  limits.ping_interval = limits.leases.grace = hours(100);
  limits.idle_timeout = Duration::zero();
  StartServer();
  StartClient({.limits = limits, .clock = &clock});
  auto run = [&]() -> Task<absl::Status> {
    Held held;
    TaskScope scope(client_runtime_->executor(0));
    scope.Spawn([&]() -> Task<void> { held = co_await CallHold(kLong, hours(1)); });
    VERBENA_CO_RETURN_IF_ERROR(co_await AwaitHolding());
    clock.moved_by = hours(1);
    co_await scope.Join();
    EXPECT_EQ(held.status.code(), absl::StatusCode::kDeadlineExceeded) << held.status;
    EXPECT_FALSE(held.request_back);
    EXPECT_FALSE(held.response_back);
    EXPECT_EQ(co_await LentNow(), 2u);
    absl::Status watched = co_await WatchMemory();
    EXPECT_EQ(service_.released, 1);
    co_return watched;
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  ExpectNothingHeld();
  StopBoth();
}

TEST_F(LeaseLifetimeTest, AfterACancellationToo) {
  StartBoth();
  auto run = [this]() -> Task<absl::Status> {
    TaskScope scope(client_runtime_->executor(0));
    Held held;
    scope.Spawn([&]() -> Task<void> { held = co_await CallHold(kLong, {}); });
    VERBENA_CO_RETURN_IF_ERROR(co_await AwaitHolding());
    scope.RequestCancel();
    co_await scope.Join();
    EXPECT_EQ(held.status.code(), absl::StatusCode::kCancelled);
    EXPECT_FALSE(held.response_back);
    EXPECT_EQ(co_await LentNow(), 2u);
    service_.let_go = true;
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  Eventually([this] { return LeasesOfClient() == 0; }, "the server's final frame ends the leases");
  ExpectNothingHeld();
}

// The scope destroys calls wherever they are: waiting for memory or windows, sending, waiting for
// the response, or for the end of their leases.
TEST_F(LeaseLifetimeTest, CallsDestroyedAtAnyAwaitLoseNoMemory) {
  LinkLimits limits;
  limits.memory.send_bytes = 4 << 20;
  limits.leases.windows_per_link = 16;
  StartServer();
  StartClient({.limits = limits});
  auto abandon = [this](int turns) -> Task<absl::Status> {
    TaskScope scope(client_runtime_->executor(0));
    for (int i = 0; i < 60; ++i) {
      if (i % 2 == 0) {
        scope.Spawn([this]() -> Task<void> { (void)co_await CallHold(milliseconds(0), {}); });
      } else {
        scope.Spawn([this, i]() -> Task<void> {
          testing::GetRequest request;
          request.set_bytes(i * 1000);
          WithPayload<testing::GetReply> reply;
          (void)co_await stub_->Get(request, reply);
        });
      }
    }
    for (int i = 0; i < turns; ++i) co_await Turn(client_runtime_->executor(0));
    co_return absl::OkStatus();
  };
  for (int turns : {0, 1, 3, 10, 30, 100, 300, 1000}) {
    ASSERT_EQ(Run(abandon(turns)), absl::OkStatus());
    ExpectNothingHeld();
  }
}

// Whether the channel has its next link while the call still waits. Then what is left of the first
// has been freed; otherwise it is still there, without its link.
class LinkLossTest : public LeaseLifetimeTest, public ::testing::WithParamInterface<bool> {};

TEST_P(LinkLossTest, ACallMayLoseItsLinkWhileItWaitsForMemory) {
  const bool has_next = GetParam();
  LinkLimits limits;
  limits.memory.send_bytes = 4 << 20;
  StartServer();
  StartClient({.limits = limits});
  auto run = [this, has_next]() -> Task<absl::Status> {
    Link* const link = OpenLinkOf(*client_runtime_);
    if (link == nullptr) co_return absl::InternalError("there is no link");
    std::vector<Buffer> taken = co_await TakeAll(link->endpoint().memory().send(), 1 << 20);
    testing::PutRequest request;
    request.set_filler(std::string(1 << 20, 'f'));
    std::optional<absl::Status> ended;
    TaskScope scope(client_runtime_->executor(0));
    scope.Spawn([&]() -> Task<void> {
      WithPayload<testing::PutReply> reply;
      ended = co_await stub_->Swap(request, reply, {.max_response_payload = 1 << 20});
    });
    for (int i = 0; i < 5; ++i) VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    EXPECT_FALSE(ended.has_value()) << *ended;
    link->Close(absl::UnavailableError("as was asked"));
    if (has_next) VERBENA_CO_RETURN_IF_ERROR(co_await AwaitLink());
    EXPECT_FALSE(ended.has_value()) << *ended;
    taken.clear();
    co_await scope.Join();
    EXPECT_TRUE(ended->ok() || OutcomeOf(*ended) == Outcome::kNotExecuted) << *ended;
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(All, LinkLossTest, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "BehindTheNext" : "BeforeTheNext");
});

TEST_F(LeaseLifetimeTest, WhenTheServerDiesTheMemoryComesHome) {
  StartBoth();
  auto run = [this]() -> Task<Held> { co_return co_await CallHold(milliseconds(0), {}); };
  std::thread killer([this] {
    while (service_.holding == 0) std::this_thread::yield();
    server_->Shutdown(milliseconds(0));
    server_.reset();
    server_runtime_.reset();
  });
  Held held = Run(run());
  killer.join();
  // The handler answers though it is cancelled, or the link is lost.
  EXPECT_EQ(held.response_back, held.status.ok()) << held.status;
  Eventually([this] { return HeldBy(*client_runtime_).bytes == 0; }, "the memory is home");
}

// Its client has the response, and waits until nobody can write to the payload any more.
TEST_F(LeaseLifetimeTest, ADrainingLinkStaysUntilThePayloadOfItsLastCallIsSafe) {
  // The server's: its shutdown has patience with the client for ever.
  testing::FakeClock standing;
  StartServer({.clock = &standing});
  StartClient();
  auto run = [this]() -> Task<Held> { co_return co_await CallHold(milliseconds(0), {}); };
  std::thread killer([this] {
    while (service_.holding == 0) std::this_thread::yield();
    server_->Shutdown(milliseconds(0));
  });
  Held held = Run(run());
  killer.join();
  EXPECT_EQ(held.status, absl::OkStatus());
  EXPECT_TRUE(held.response_back);
  standing.Run();
  ExpectNothingHeld();
  StopBoth();
}

TEST_F(LeaseLifetimeTest, WhenTheClientDiesTheServersMemoryComesHome) {
  StartBoth();
  auto call = [this]() -> Task<void> { (void)co_await CallHold(milliseconds(20), {}); };
  client_runtime_->Spawn(call());
  while (service_.holding == 0) std::this_thread::yield();
  stub_.reset();
  channel_.reset();
  client_runtime_.reset();
  const TimePoint limit = Clock::Real().Now() + seconds(20);
  while (HeldBy(*server_runtime_).bytes > 0 && Clock::Real().Now() < limit) {
    std::this_thread::yield();
  }
  EXPECT_EQ(HeldBy(*server_runtime_).bytes, 0u);
}

TEST_F(LeaseLifetimeTest, BeyondTheQuarantinesBudgetNoMoreIsLent) {
  LinkLimits limits;
  limits.leases.quarantine_bytes = kBytes;
  limits.leases.grace = hours(1);
  StartServer();
  StartClient({.limits = limits});
  auto run = [this]() -> Task<absl::Status> {
    Held first;
    TaskScope scope(client_runtime_->executor(0));
    scope.Spawn([&]() -> Task<void> { first = co_await CallHold(kLong, {}); });
    VERBENA_CO_RETURN_IF_ERROR(co_await AwaitHolding());
    scope.RequestCancel();
    co_await scope.Join();
    EXPECT_EQ(first.status.code(), absl::StatusCode::kCancelled);
    Held second = co_await CallHold(milliseconds(0), seconds(20));
    service_.let_go = true;
    EXPECT_TRUE(second.request_back && second.response_back) << "nothing of it was leased";
    co_return second.status;
  };
  absl::Status status = Run(run());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  ExpectNothingHeld();
  auto again = [this]() -> Task<Held> {
    co_return co_await CallHold(milliseconds(0), milliseconds(50));
  };
  EXPECT_NE(Run(again()).status.code(), absl::StatusCode::kResourceExhausted);
  ExpectNothingHeld();
}

}  // namespace lease_lifetime_test
}  // namespace verbena::internal
