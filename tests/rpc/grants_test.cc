// The landings that a server grants ahead of requests follow their client's use in number and size,
// are bounded, and come back.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/payload_service.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scope.h"

namespace verbena::internal {
namespace grants_test {

using std::chrono::milliseconds;

class GrantsTest : public PayloadFixture {
 protected:
  void TearDown() override { ExpectNothingHeld(); }

  // Limits of a server that grants landings for payloads of all sizes, on any device.
  static LinkLimits ForAllSizes() {
    LinkLimits limits;
    limits.leases.largest_grant_bytes = limits.max_payload_bytes;
    return limits;
  }

  Task<absl::Status> Put(size_t bytes) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(bytes));
    Payload payload = std::move(buffer);
    testing::PutReply reply;
    VERBENA_CO_RETURN_IF_ERROR(
        co_await stub_->Put(testing::PutRequest(), reply,
                            {.request_payload = std::move(payload), .returned_payload = &payload}));
    EXPECT_EQ(reply.bytes(), bytes);
    EXPECT_TRUE(reply.right());
    EXPECT_EQ(payload.size(), bytes) << "the buffer comes back";
    co_return absl::OkStatus();
  }

  Task<absl::Status> PutAtOnce(int count, size_t bytes) {
    TaskScope scope(client_runtime_->executor(0));
    for (int i = 0; i < count; ++i) {
      scope.Spawn(
          [this, bytes]() -> Task<void> { EXPECT_EQ(co_await Put(bytes), absl::OkStatus()); });
    }
    co_await scope.Join();
    co_return absl::OkStatus();
  }

  uint64_t Written() { return server_->stats().payloads_written; }
  size_t Granted() { return server_->stats().granted_bytes; }
};

TEST_F(GrantsTest, TheFirstPayloadIsReadAndLaterOnesAreWritten) {
  StartBoth(ForAllSizes());
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(Run(Put(10'000)), absl::OkStatus());
    EXPECT_EQ(Written(), i);
    EXPECT_EQ(Granted(), 16384u) << "one, in place of the one that was used";
  }
}

TEST_F(GrantsTest, AsManyAreGrantedAsWereUsedAtOnce) {
  StartBoth(ForAllSizes());
  ASSERT_EQ(Run(PutAtOnce(8, 5000)), absl::OkStatus());
  const uint64_t before = Written();
  ASSERT_EQ(Run(PutAtOnce(8, 5000)), absl::OkStatus());
  EXPECT_EQ(Written() - before, 8u);
  EXPECT_EQ(Granted(), 8 * 8192u);
}

TEST_F(GrantsTest, SmallPayloadsTakeNoLargeLandings) {
  StartBoth(ForAllSizes());
  ASSERT_EQ(Run(Put(1 << 20)), absl::OkStatus());
  ASSERT_EQ(Run(Put(8192)), absl::OkStatus());
  EXPECT_EQ(Written(), 0u);
  ASSERT_EQ(Run(Put(1 << 20)), absl::OkStatus());
  ASSERT_EQ(Run(Put(8000)), absl::OkStatus());
  EXPECT_EQ(Written(), 2u);
}

TEST_F(GrantsTest, PayloadsOverTheLargestGrantAreRead) {
  LinkLimits limits;
  limits.leases.largest_grant_bytes = 8192;
  StartServer({.limits = limits});
  StartClient();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(Run(Put(8193)), absl::OkStatus());
    ASSERT_EQ(Run(Put(8192)), absl::OkStatus());
  }
  EXPECT_EQ(Written(), 2u);
}

TEST_F(GrantsTest, TheBoundOfALinkHolds) {
  LinkLimits limits = ForAllSizes();
  limits.leases.granted_bytes_per_client = 100'000;
  StartServer({.limits = limits});
  StartClient();
  ASSERT_EQ(Run(PutAtOnce(12, 30'000)), absl::OkStatus());
  EXPECT_EQ(Granted(), 3 * 32768u);
  ASSERT_EQ(Run(PutAtOnce(12, 200'000)), absl::OkStatus());
  EXPECT_LE(Granted(), 100'000u);
}

TEST_F(GrantsTest, TheBoundHoldsForAllLinksOfAClient) {
  LinkLimits limits = ForAllSizes();
  limits.leases.granted_bytes_per_client = 100'000;
  StartServer({.limits = limits});
  StartClient({.executors = 2});
  for (const int executor : {0, 1}) ASSERT_EQ(Run(Put(60'000), executor), absl::OkStatus());
  EXPECT_EQ(server_runtime_->endpoint_stats(0).links, 2u);
  EXPECT_GT(Granted(), 0u);
  EXPECT_LE(Granted(), 100'000u);
}

// A client gets no second landing by giving its first one to a handler that does not end.
TEST_F(GrantsTest, TheBoundHoldsForLandingsThatHandlersHave) {
  LinkLimits limits = ForAllSizes();
  limits.leases.granted_bytes_per_client = 100'000;
  StartServer({.limits = limits});
  StartClient();
  ASSERT_EQ(Run(Put(60'000)), absl::OkStatus());
  ASSERT_EQ(Granted(), 65536u);
  std::unique_ptr<TaskScope> holding;
  auto start = [&]() -> Task<absl::Status> {
    holding = std::make_unique<TaskScope>(client_runtime_->executor(0));
    holding->Spawn([this]() -> Task<void> {
      absl::StatusOr<Buffer> buffer = co_await Filled(60'000);
      EXPECT_TRUE(buffer.ok()) << buffer.status();
      if (!buffer.ok()) co_return;
      WithPayload<testing::PutReply> reply;
      (void)co_await stub_->Hold(testing::HoldRequest(), reply,
                                 {.request_payload = *std::move(buffer)});
    });
    co_return absl::OkStatus();
  };
  auto end = [&]() -> Task<absl::Status> {
    holding->RequestCancel();
    co_await holding->Join();
    holding.reset();
    co_return absl::OkStatus();
  };
  ASSERT_EQ(Run(start()), absl::OkStatus());
  Eventually([this] { return service_.holding == 1; }, "a handler has the landing");
  EXPECT_EQ(Written(), 1u);
  EXPECT_EQ(Granted(), 0u);
  EXPECT_EQ(Run(Put(60'000)), absl::OkStatus());
  EXPECT_EQ(Granted(), 0u);
  ASSERT_EQ(Run(end()), absl::OkStatus());
  Eventually([this] { return Granted() == 65536; }, "the end of the call makes room for another");
}

TEST_F(GrantsTest, EitherSideMayDoWithout) {
  LinkLimits without;
  without.leases.granted_bytes_per_client = 0;
  for (const bool server : {true, false}) {
    StartServer(server ? RuntimeOptions{.limits = without} : RuntimeOptions{});
    StartClient(server ? RuntimeOptions{} : RuntimeOptions{.limits = without});
    for (int i = 0; i < 3; ++i) ASSERT_EQ(Run(Put(50'000)), absl::OkStatus());
    EXPECT_EQ(Written(), 0u);
    EXPECT_EQ(Granted(), 0u);
    if (server) StopBoth();
  }
}

// The server asks for unused landings back when a payload finds no room.
TEST_F(GrantsTest, LandingsAreTakenBackWhenMemoryIsShort) {
  LinkLimits limits = ForAllSizes();
  limits.memory.receive_bytes = 1 << 20;
  StartServer({.limits = limits});
  StartClient();
  ASSERT_EQ(Run(PutAtOnce(8, 60'000)), absl::OkStatus());
  EXPECT_EQ(Granted(), 8 * 65536u);
  ASSERT_EQ(Run(Put(1 << 20)), absl::OkStatus());
  ASSERT_EQ(Run(PutAtOnce(8, 60'000)), absl::OkStatus());
}

// A client that uses its landings for ever smaller payloads has all slots full of others.
TEST_F(GrantsTest, LandingsOfOtherSizesMakeRoom) {
  StartBoth(ForAllSizes());
  ASSERT_EQ(Run(PutAtOnce(16, 500'000)), absl::OkStatus());
  for (int i = 0; i < 20; ++i) ASSERT_EQ(Run(Put(8192)), absl::OkStatus());
  EXPECT_GE(Written(), 10u);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(Run(Put(500'000)), absl::OkStatus());
  EXPECT_GE(Written(), 20u);
}

TEST_F(GrantsTest, ACallThatEndsBeforeItBeganReturnsWhatItTook) {
  StartBoth(ForAllSizes());
  ASSERT_EQ(Run(Put(5000)), absl::OkStatus());
  auto late = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(5000));
    Payload payload = std::move(buffer);
    testing::PutReply reply;
    absl::Status status = co_await stub_->Put(
        testing::PutRequest(), reply,
        {.deadline = Deadline(client_runtime_->executor(0).now() - milliseconds(1)),
         .request_payload = std::move(payload),
         .returned_payload = &payload});
    EXPECT_EQ(payload.size(), 5000u) << "the buffer comes back";
    co_return status;
  };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(absl::IsDeadlineExceeded(Run(late())));
  ASSERT_EQ(Run(Put(5000)), absl::OkStatus());
  ASSERT_EQ(Run(Put(5000)), absl::OkStatus());
  EXPECT_GE(Written(), 1u);
  EXPECT_EQ(Granted(), 8192u);
}

// Calls that are given up at every stage of their payload's way leave nothing behind, and what the
// server was given is what they sent.
TEST_F(GrantsTest, CallsThatAreGivenUpLeaveNothingBehind) {
  StartBoth(ForAllSizes());
  auto storm = [this]() -> Task<absl::Status> {
    TaskScope scope(client_runtime_->executor(0));
    for (int i = 0; i < 300; ++i) {
      scope.Spawn([this, i]() -> Task<void> {
        absl::StatusOr<Buffer> buffer = co_await Filled(100'000);
        EXPECT_TRUE(buffer.ok());
        Payload payload = *std::move(buffer);
        testing::PutReply reply;
        absl::Status status = co_await stub_->Put(
            testing::PutRequest(), reply,
            {.deadline =
                 Deadline(client_runtime_->executor(0).now() + std::chrono::microseconds(i * 17)),
             .request_payload = std::move(payload),
             .returned_payload = &payload});
        if (status.ok()) {
          EXPECT_TRUE(reply.right());
        }
        // The buffer is the application's again: the server never sees what is written now.
        if (payload.present()) {
          Buffer back = payload.TakeBuffer();
          std::memset(back.data(), 'x', back.size());
        }
      });
    }
    co_await scope.Join();
    co_return absl::OkStatus();
  };
  ASSERT_EQ(Run(storm()), absl::OkStatus());
  EXPECT_EQ(service_.wrong, 0) << "a payload changed under way";
  ASSERT_EQ(Run(PutAtOnce(4, 100'000)), absl::OkStatus());
}

}  // namespace grants_test
}  // namespace verbena::internal
