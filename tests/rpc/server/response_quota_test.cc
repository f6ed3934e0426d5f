// The memory that one client's responses take, or its handlers keep, is bounded for the client and
// for its source address, and counts until it is free. A refusal names who holds it, and who waits
// ahead.

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/rpc/first_device.h"
#include "tests/rpc/payload_testing.verbena.pb.h"
#include "tests/rpc/runtime_pair.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/server/clients.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/quota.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {
namespace response_quota_test {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kBudget = 1 << 20;
constexpr size_t kPart = kBudget / 4;

// Its handlers keep the memory that they allocate, as a cache does, or answer with SLICES of it.
// RAW waits only a moment for it.
class KeepingService final : public testing::Payloads::Service {
 public:
  Task<absl::Status> Get(ServerContext& context, const testing::GetRequest& request,
                         testing::GetReply& reply) override {
    reply.mutable_filler()->assign(request.filler_bytes(), 'f');
    if (request.how() == testing::PIECES) {
      // Each is free before the next.
      for (int i = 0; i < 16; ++i) {
        VERBENA_CO_RETURN_IF_ERROR((co_await context.AllocateBuffer(request.bytes())).status());
      }
    } else if (request.how() == testing::RAW) {
      co_return (co_await WithDeadline(context.AllocateBuffer(request.bytes()),
                                       Duration(std::chrono::milliseconds(1))))
          .status();
    } else if (request.bytes() > 0) {
      VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await context.AllocateBuffer(request.bytes()));
      if (request.how() == testing::SLICES) {
        Payload payload;
        payload.Add(std::move(buffer), {{0, 100}, {100, request.bytes() - 100}});
        context.SetResponsePayload(std::move(payload));
      } else {
        kept.push_back(std::move(buffer));
      }
    }
    co_return absl::OkStatus();
  }

  // Read while no call runs.
  std::vector<Buffer> kept;
};

class ResponseMemoryTest : public RuntimePair {
 protected:
  struct Client {
    std::unique_ptr<Runtime> runtime;
    std::unique_ptr<Channel> channel;
  };

  void SetUp() override {
    LinkLimits limits;
    limits.memory.send_bytes = kBudget;
    server_runtime_ = StartRuntime({.limits = limits});
    // Otherwise the first calls would have to be faster than the device registers memory.
    ASSERT_EQ(server_runtime_->BlockOn(RegisterAll()), absl::OkStatus());
    // No wait for memory in use can be met.
    ServeWith(service_, {.memory_wait = std::chrono::seconds(1)});
  }
  void TearDown() override {
    service_.kept.clear();
    server_.reset();
  }

  // The server's send memory; a pool keeps what it has registered.
  Task<absl::Status> RegisterAll() {
    co_return (co_await PayloadMemoryOf(*server_runtime_)->send().Allocate(kBudget)).status();
  }

  Client StartClient() {
    Client client{StartRuntime(), nullptr};
    client.channel = std::make_unique<Channel>(*client.runtime, server_->address());
    return client;
  }
  static absl::Status Get(Client& client, size_t bytes, testing::How how = testing::WHOLE,
                          size_t filler_bytes = 0) {
    return client.runtime->BlockOn(GetOnce(*client.channel, bytes, how, filler_bytes));
  }
  static Task<absl::Status> GetOnce(Channel& channel, size_t bytes, testing::How how,
                                    size_t filler_bytes) {
    testing::Payloads::Stub stub(channel);
    testing::GetRequest request;
    request.set_bytes(bytes);
    request.set_how(how);
    request.set_filler_bytes(filler_bytes);
    WithPayload<testing::GetReply> reply;
    co_return co_await stub.Get(request, reply);
  }
  static void ExpectRefused(const absl::Status& status, const std::string& bound) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
    EXPECT_THAT(std::string(status.message()), HasSubstr(bound));
  }

  KeepingService service_;
};

struct CountingListener final : ShortageListener {
  void OnQuotaShort(const Quota& quota) override { short_of.push_back(&quota); }
  void OnPoolShort() override {}

  std::vector<const Quota*> short_of;
};

// The first quota has served the wait when its caller gives it up: nobody asks the second quota.
TEST_F(ResponseMemoryTest, AWaitThatWasGivenUpAsksForNothingMore) {
  Quota top(100);
  Quota part(10, &top);
  CountingListener listener;
  QuotaHold all(part, 10);
  ASSERT_TRUE(all.TryTake());
  const auto run = [&]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Endpoint * endpoint,
                                CoreOf(*server_runtime_).shard(0).EndpointOn(0));
    BufferPool& pool = PayloadMemoryOf(*server_runtime_)->send();
    QuotaHold hold(part, 10);
    CancelScope scope;
    const auto wait = [&]() -> Task<absl::Status> {
      co_return (co_await AllocateWithin(hold, *endpoint, pool, 64, {.listener = &listener}))
          .status();
    };
    const auto waiter = [&]() -> Task<absl::Status> { co_return co_await wait().In(&scope); };
    const auto give_up = [&]() -> Task<absl::Status> {
      EXPECT_EQ(listener.short_of, std::vector<const Quota*>{&part});
      all.Give();
      EXPECT_TRUE(top.TryTake(top.room()));
      scope.Request();
      co_return absl::OkStatus();
    };
    auto [waited, given_up] = co_await WhenAll(waiter(), give_up());
    co_return waited;
  };
  EXPECT_EQ(server_runtime_->BlockOn(run()).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(listener.short_of.size(), 1u);
  EXPECT_EQ(part.used(), 0u);
  top.Give(top.used());
}

TEST_F(ResponseMemoryTest, MemoryForOneClientsResponsesLeavesRoomForOthers) {
  Client greedy = StartClient();
  for (int i = 0; i < 2; ++i) ASSERT_EQ(Get(greedy, kPart), absl::OkStatus());
  const absl::Status refused = Get(greedy, kPart);
  ExpectRefused(refused, "max_response_bytes_per_client");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("take 524288 of the 524288 bytes"));
  EXPECT_EQ(server_->stats().memory_refused, 1u);

  Client other = StartClient();
  EXPECT_EQ(Get(other, kPart), absl::OkStatus());
  // Three quarters are all that the address of both may have.
  ExpectRefused(Get(other, kPart), "max_response_bytes_per_source");
  EXPECT_EQ(server_->stats().memory_refused, 2u);

  service_.kept.clear();
  EXPECT_EQ(Get(greedy, kPart), absl::OkStatus());
}

TEST_F(ResponseMemoryTest, AReplyTooLargeForItsFrameCountsAsItsClients) {
  Client client = StartClient();
  for (int i = 0; i < 2; ++i) ASSERT_EQ(Get(client, kPart), absl::OkStatus());
  ExpectRefused(Get(client, 0, testing::WHOLE, 100'000), "max_response_bytes_per_client");
  service_.kept.clear();
  EXPECT_EQ(Get(client, 0, testing::WHOLE, 100'000), absl::OkStatus());
}

TEST_F(ResponseMemoryTest, ABufferCountsUntilItsMemoryIsFreeAndNoLonger) {
  Client client = StartClient();
  EXPECT_EQ(Get(client, kPart, testing::PIECES), absl::OkStatus());
  // More than the bound, alone.
  EXPECT_EQ(Get(client, 3 * kPart, testing::PIECES), absl::OkStatus());
}

TEST_F(ResponseMemoryTest, AHandlersOwnDeadlineIsNotTakenForTheBoundOfTheWait) {
  server_.reset();
  ServeWith(service_, {.max_response_bytes_per_client = kBudget,
                       .max_response_bytes_per_source = 2 * kBudget,
                       .memory_wait = std::chrono::hours(1)});
  Client client = StartClient();
  ASSERT_EQ(Get(client, kBudget), absl::OkStatus());
  EXPECT_EQ(Get(client, kPart, testing::RAW).code(), absl::StatusCode::kDeadlineExceeded);
  // This one has its share, and waits for memory.
  Client other = StartClient();
  EXPECT_EQ(Get(other, kPart, testing::RAW).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(server_->stats().memory_refused, 0u);
}

TEST_F(ResponseMemoryTest, AReplyDoesNotWaitForTheMemoryOfItsOwnPayload) {
  Client client = StartClient();
  client_runtime_ = StartRuntime();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Get(client, 2 * kPart, testing::SLICES, 100'000), absl::OkStatus());
    // The client's device may acknowledge the payload later than its executor sees the response.
    Eventually([this] { return server_->stats().send_memory.in_use == 0; },
               "the memory of payload and reply is home");
  }
  EXPECT_EQ(server_->stats().memory_refused, 0u);
}

// The bounds of one source and its two clients, without a server.
class ResponseMemoryTextTest : public RuntimePair {
 protected:
  static constexpr size_t kOfClient = 2 * kPart;

  void SetUp() override {
    LinkLimits limits;
    limits.memory.send_bytes = kBudget;
    client_runtime_ = StartRuntime({.limits = limits});
  }

  Task<absl::StatusOr<Buffer>> Take(ServerClient& client, size_t bytes,
                                    Duration longest = std::chrono::hours(1)) {
    absl::StatusOr<Endpoint*> endpoint = CoreOf(*client_runtime_).shard(0).EndpointOn(0);
    if (!endpoint.ok()) co_return endpoint.status();
    co_return co_await AllocateResponse(client, **endpoint, bytes, {.longest = longest});
  }
  // How a small buffer is refused while a call of `waits` waits for a large one.
  Task<std::string> SmallBehindLarge(ServerClient& waits) {
    TaskScope scope(client_runtime_->executor(0));
    scope.Spawn([&]() -> Task<void> { (void)co_await Take(waits, kOfClient); });
    (void)co_await Yield();
    const absl::Status refused =
        (co_await Take(waits, 1000, std::chrono::milliseconds(1))).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    scope.RequestCancel();
    co_await scope.Join();
    co_return std::string(refused.message());
  }

  static ClientBounds BoundsOf(size_t responses) {
    return {.calls = 1, .bytes = kBudget, .granted = kBudget, .responses = responses};
  }

  const std::shared_ptr<ServerSource> source_ =
      std::make_shared<ServerSource>(BoundsOf(kOfClient + kPart));
  const std::shared_ptr<ServerClient> first_ =
      std::make_shared<ServerClient>(source_, BoundsOf(kOfClient));
  const std::shared_ptr<ServerClient> second_ =
      std::make_shared<ServerClient>(source_, BoundsOf(kOfClient));
};

TEST_F(ResponseMemoryTextTest, ARefusalOfASmallBufferBehindALargeOneTellsOfThat) {
  auto check = [this]() -> Task<void> {
    absl::StatusOr<Buffer> kept = co_await Take(*first_, kPart);
    EXPECT_TRUE(kept.ok()) << kept.status();
    const std::string text = co_await SmallBehindLarge(*first_);
    EXPECT_THAT(text, HasSubstr("take 262144 of the 524288 bytes"));
    EXPECT_THAT(text, HasSubstr("and the 262144 left may be too few for a call that asked before"));
  };
  Run(check());
}

// All of the client's share is with the call that waits for one of the source's.
TEST_F(ResponseMemoryTextTest, SharesOfCallsThatWaitAreNotTakenForThoseOfBuffers) {
  auto check = [this]() -> Task<void> {
    absl::StatusOr<Buffer> kept = co_await Take(*first_, kOfClient);
    EXPECT_TRUE(kept.ok()) << kept.status();
    const std::string text = co_await SmallBehindLarge(*second_);
    EXPECT_THAT(text, HasSubstr("take 0 of the 524288 bytes"));
    EXPECT_THAT(text,
                HasSubstr(", and 524288 more are kept for other calls, which wait for memory"));
  };
  Run(check());
}

// When it is refused, a call behind it has its share already, and waits for the source's.
TEST_F(ResponseMemoryTextTest, ARefusalTakesNoCallBehindItForOneAheadOfIt) {
  auto check = [this]() -> Task<void> {
    absl::StatusOr<Buffer> kept = co_await Take(*first_, kPart);
    absl::StatusOr<Buffer> of_source = co_await Take(*second_, kOfClient);
    EXPECT_TRUE(kept.ok() && of_source.ok()) << kept.status() << of_source.status();
    TaskScope scope(client_runtime_->executor(0));
    std::string text;
    scope.Spawn([&]() -> Task<void> {
      const absl::Status refused =
          (co_await Take(*first_, kOfClient, std::chrono::milliseconds(1))).status();
      text = std::string(refused.message());
    });
    scope.Spawn([&]() -> Task<void> { (void)co_await Take(*first_, kPart); });
    while (text.empty()) (void)co_await Yield();
    EXPECT_THAT(text, HasSubstr(", and 262144 more are kept for other calls"));
    EXPECT_THAT(text, Not(HasSubstr("ahead")));
    scope.RequestCancel();
    co_await scope.Join();
  };
  Run(check());
}

TEST_F(ResponseMemoryTest, ABufferMayOutliveItsClient) {
  Client client = StartClient();
  ASSERT_EQ(Get(client, kPart), absl::OkStatus());
  client = {};
  client = StartClient();
  ASSERT_EQ(Get(client, kPart), absl::OkStatus());
  service_.kept.clear();
  EXPECT_EQ(Get(client, 2 * kPart), absl::OkStatus());
}

}  // namespace response_quota_test
}  // namespace verbena::internal
