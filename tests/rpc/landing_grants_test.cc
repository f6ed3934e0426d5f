// Landings that a server grants ahead of requests: they follow use, are bounded, and come back.

#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/payload_service.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/task_scope.h"

namespace verbena {
namespace {

using std::chrono::milliseconds;

class LandingGrantsTest : public PayloadFixture {
 protected:
  void TearDown() override { ExpectNothingHeld(); }

  // Of a server that grants landings for payloads of all sizes, on any device.
  static LinkLimits ForAllSizes() {
    LinkLimits limits;
    limits.leases.largest_grant_bytes = limits.max_payload_bytes;
    return limits;
  }

  Task<absl::Status> Put(size_t bytes) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(bytes));
    CallInfo info;
    testing::PutReply reply;
    VERBENA_CO_RETURN_IF_ERROR(co_await stub_->Put(
        testing::PutRequest(), reply, {.info = &info, .request_payload = std::move(buffer)}));
    EXPECT_EQ(reply.bytes(), bytes);
    EXPECT_TRUE(reply.right());
    EXPECT_EQ(info.request_payload.size(), bytes) << "the buffer comes back";
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

TEST_F(LandingGrantsTest, TheFirstPayloadIsReadAndLaterOnesAreWritten) {
  StartBoth(ForAllSizes());
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(Run(Put(10'000)), absl::OkStatus());
    EXPECT_EQ(Written(), i);
    EXPECT_EQ(Granted(), 16384u) << "one, in place of the one that was used";
  }
}

TEST_F(LandingGrantsTest, AsManyAreGrantedAsWereUsedAtOnce) {
  StartBoth(ForAllSizes());
  ASSERT_EQ(Run(PutAtOnce(8, 5000)), absl::OkStatus());
  const uint64_t before = Written();
  ASSERT_EQ(Run(PutAtOnce(8, 5000)), absl::OkStatus());
  EXPECT_EQ(Written() - before, 8u);
  EXPECT_EQ(Granted(), 8 * 8192u);
}

TEST_F(LandingGrantsTest, SmallPayloadsTakeNoLargeLandings) {
  StartBoth(ForAllSizes());
  ASSERT_EQ(Run(Put(1 << 20)), absl::OkStatus());
  ASSERT_EQ(Run(Put(4096)), absl::OkStatus());
  EXPECT_EQ(Written(), 0u);
  ASSERT_EQ(Run(Put(1 << 20)), absl::OkStatus());
  ASSERT_EQ(Run(Put(4000)), absl::OkStatus());
  EXPECT_EQ(Written(), 2u);
}

TEST_F(LandingGrantsTest, PayloadsOverTheLargestGrantAreRead) {
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

TEST_F(LandingGrantsTest, TheBoundOfALinkHolds) {
  LinkLimits limits = ForAllSizes();
  limits.leases.granted_bytes_per_link = 100'000;
  StartServer({.limits = limits});
  StartClient();
  ASSERT_EQ(Run(PutAtOnce(12, 30'000)), absl::OkStatus());
  EXPECT_EQ(Granted(), 3 * 32768u);
  ASSERT_EQ(Run(PutAtOnce(12, 200'000)), absl::OkStatus());
  EXPECT_LE(Granted(), 100'000u);
}

TEST_F(LandingGrantsTest, EitherSideMayDoWithout) {
  LinkLimits without;
  without.leases.granted_bytes_per_link = 0;
  for (const bool server : {true, false}) {
    StartServer(server ? RuntimeOptions{.limits = without} : RuntimeOptions{});
    StartClient(server ? RuntimeOptions{} : RuntimeOptions{.limits = without});
    for (int i = 0; i < 3; ++i) ASSERT_EQ(Run(Put(50'000)), absl::OkStatus());
    EXPECT_EQ(Written(), 0u);
    EXPECT_EQ(Granted(), 0u);
    if (server) StopBoth();
  }
}

// What lies unused in the hands of clients is asked back for a payload that finds no room.
TEST_F(LandingGrantsTest, TheyAreTakenBackWhenMemoryIsShort) {
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
TEST_F(LandingGrantsTest, LandingsOfOtherSizesMakeRoom) {
  StartBoth(ForAllSizes());
  ASSERT_EQ(Run(PutAtOnce(16, 500'000)), absl::OkStatus());
  for (int i = 0; i < 20; ++i) ASSERT_EQ(Run(Put(4096)), absl::OkStatus());
  EXPECT_GE(Written(), 10u);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(Run(Put(500'000)), absl::OkStatus());
  EXPECT_GE(Written(), 20u);
}

TEST_F(LandingGrantsTest, ACallThatEndsBeforeItBeganReturnsWhatItTook) {
  StartBoth(ForAllSizes());
  ASSERT_EQ(Run(Put(5000)), absl::OkStatus());
  auto late = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(5000));
    CallInfo info;
    testing::PutReply reply;
    absl::Status status = co_await stub_->Put(
        testing::PutRequest(), reply,
        {.deadline = Deadline(client_runtime_->executor(0).now() - milliseconds(1)),
         .info = &info,
         .request_payload = std::move(buffer)});
    EXPECT_EQ(info.request_payload.size(), 5000u) << "the buffer comes back";
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
TEST_F(LandingGrantsTest, CallsThatAreGivenUpLeaveNothingBehind) {
  StartBoth(ForAllSizes());
  auto storm = [this]() -> Task<absl::Status> {
    TaskScope scope(client_runtime_->executor(0));
    for (int i = 0; i < 300; ++i) {
      scope.Spawn([this, i]() -> Task<void> {
        absl::StatusOr<Buffer> buffer = co_await Filled(100'000);
        EXPECT_TRUE(buffer.ok());
        CallInfo info;
        testing::PutReply reply;
        absl::Status status = co_await stub_->Put(
            testing::PutRequest(), reply,
            {.deadline =
                 Deadline(client_runtime_->executor(0).now() + std::chrono::microseconds(i * 17)),
             .info = &info,
             .request_payload = *std::move(buffer)});
        if (status.ok()) EXPECT_TRUE(reply.right());
        // The application's again: what it writes here reaches nobody.
        if (info.request_payload.has_memory()) {
          Buffer back = info.request_payload.TakeBuffer();
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

}  // namespace
}  // namespace verbena
