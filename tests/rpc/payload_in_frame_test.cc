// Small payloads travel in frames, in both directions and beside messages of any size: they arrive
// whole, nothing is leased or moved one-sided for them, and budgets bound them as before.

#include <chrono>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/first_device.h"
#include "tests/rpc/payload_service.h"
#include "tests/support/moved_clock.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {
namespace payload_in_frame_test {

using testing::GetReply;
using testing::GetRequest;
using testing::PutReply;
using testing::PutRequest;

GetRequest Wanted(size_t bytes, testing::How how = testing::WHOLE, size_t filler = 0) {
  GetRequest request;
  request.set_bytes(bytes);
  request.set_how(how);
  request.set_filler_bytes(filler);
  return request;
}

class InFrameFixture : public PayloadFixture {
 protected:
  Task<absl::Status> Put(Payload payload, size_t filler = 0, Deadline deadline = {}) {
    const size_t bytes = payload.size();
    PutRequest request;
    request.mutable_filler()->assign(filler, 'm');
    PutReply reply;
    VERBENA_CO_RETURN_IF_ERROR(co_await stub_->Put(request, reply,
                                                   {.deadline = deadline,
                                                    .request_payload = std::move(payload),
                                                    .returned_payload = &payload}));
    EXPECT_EQ(reply.bytes(), bytes);
    EXPECT_TRUE(reply.right());
    EXPECT_EQ(payload.size(), bytes) << "the buffer comes back";
    co_return absl::OkStatus();
  }
  Task<absl::Status> PutFilled(size_t bytes, size_t filler = 0, Deadline deadline = {}) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(bytes));
    co_return co_await Put(std::move(buffer), filler, deadline);
  }
  Task<absl::Status> Get(GetRequest request, CallOptions options) {
    WithPayload<GetReply> reply;
    const char* into = options.response_payload_into.data();
    VERBENA_CO_RETURN_IF_ERROR(co_await stub_->Get(request, reply, std::move(options)));
    EXPECT_TRUE(reply.has_payload);
    EXPECT_EQ(reply.payload.size(), request.bytes());
    EXPECT_TRUE(IsPattern(reply.payload.view()));
    EXPECT_EQ(reply->filler(), std::string(request.filler_bytes(), 'f'));
    if (into != nullptr) {
      EXPECT_EQ(reply.payload.data(), into);
    }
    co_return absl::OkStatus();
  }
  Task<absl::Status> GetInto(GetRequest request, size_t bytes) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer into, co_await channel_->AllocateBuffer(bytes));
    co_return co_await Get(request, {.response_payload_into = std::move(into)});
  }
  // The device's default, since no test of this fixture that asks gives another.
  size_t LargestInFrame() { return DefaultPayloadInFrame(FirstDeviceOf(*client_runtime_)); }
  // Transfers of both sides so far.
  uint64_t Moved() {
    return client_runtime_->endpoint_stats(0).traffic.transfers +
           server_runtime_->endpoint_stats(0).traffic.transfers;
  }
};

struct Ways {
  const char* name;
  LeaseLevel level;
  PayloadChecksum checksum;
  uint32_t eager_bytes;
};

void PrintTo(const Ways& ways, std::ostream* out) { *out << ways.name; }

class PayloadInFrameTest : public InFrameFixture, public ::testing::WithParamInterface<Ways> {
 protected:
  void SetUp() override {
    LinkLimits limits;
    limits.leases.level = GetParam().level;
    limits.payload_checksum = GetParam().checksum;
    limits.eager_bytes = GetParam().eager_bytes;
    StartBoth(limits);
  }
  void TearDown() override { ExpectNothingHeld(); }
};

// Beside messages that leave just enough room for the payload, or one byte too little.
TEST_P(PayloadInFrameTest, PayloadsOfEverySizeAroundTheThresholdArriveWhole) {
  const size_t body = MaxBodyBytes(GetParam().eager_bytes);
  const size_t most = std::min<size_t>(LargestInFrame(), body - kRequestBulkBytes);
  std::vector<size_t> sizes = {1, 2, 63, 64, 1000};
  for (size_t bytes = most - 3; bytes <= most + 3; ++bytes) sizes.push_back(bytes);
  for (const size_t bytes : sizes) {
    EXPECT_EQ(Run(PutFilled(bytes)), absl::OkStatus()) << bytes;
    for (const testing::How how : {testing::WHOLE, testing::SLICES, testing::PIECES}) {
      EXPECT_EQ(Run(Get(Wanted(bytes, how), {.max_response_payload = bytes})), absl::OkStatus());
      EXPECT_EQ(Run(GetInto(Wanted(bytes, how), bytes)), absl::OkStatus()) << bytes;
      EXPECT_EQ(Run(GetInto(Wanted(bytes, how), bytes + 70'000)), absl::OkStatus()) << bytes;
      if (how == testing::PIECES) continue;  // takes room
      EXPECT_EQ(Run(Get(Wanted(bytes, how), {})), absl::OkStatus()) << bytes;
    }
  }
}

TEST_P(PayloadInFrameTest, MessagesOfEverySizeAroundTheRestOfTheFrameArriveWhole) {
  const size_t body = MaxBodyBytes(GetParam().eager_bytes);
  for (const size_t bytes : {size_t{1}, size_t{500}, body - 600}) {
    // The message's own field takes up to three bytes beside its filler.
    for (size_t rest = 0; rest < 8; ++rest) {
      const size_t request_filler = body - kRequestBulkBytes - bytes - rest;
      EXPECT_EQ(Run(PutFilled(bytes, request_filler)), absl::OkStatus()) << request_filler;
      const size_t filler = body - ResponseBulk::kEncodedBytes - bytes - rest;
      const GetRequest request = Wanted(bytes, testing::WHOLE, filler);
      EXPECT_EQ(Run(Get(request, {.max_response_payload = bytes})), absl::OkStatus()) << filler;
      EXPECT_EQ(Run(GetInto(request, bytes)), absl::OkStatus()) << filler;
      EXPECT_EQ(Run(Get(request, {})), absl::OkStatus()) << filler;
    }
    const GetRequest large = Wanted(bytes, testing::PIECES, 100'000);
    EXPECT_EQ(Run(PutFilled(bytes, 100'000)), absl::OkStatus());
    EXPECT_EQ(Run(GetInto(large, bytes)), absl::OkStatus());
    EXPECT_EQ(Run(Get(Wanted(bytes, testing::WHOLE, 100'000), {})), absl::OkStatus());
  }
}

TEST_P(PayloadInFrameTest, ARequestIsGatheredFromItsParts) {
  auto put = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer first, co_await channel_->AllocateBuffer(900));
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer second, co_await channel_->AllocateBuffer(50));
    FillPattern(first.Slice(100, 300), 0);
    FillPattern(first.Slice(700, 7), 300);
    FillPattern(second.view(), 307);
    Payload payload;
    payload.Add(std::move(first), {{100, 300}, {0, 0}, {700, 7}});
    payload.Add(std::move(second));
    co_return co_await Put(std::move(payload), 100);
  };
  EXPECT_EQ(Run(put()), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(
    Ways, PayloadInFrameTest,
    ::testing::Values(Ways{"auto", LeaseLevel::kAuto, PayloadChecksum::kAuto, 4608},
                      Ways{"region", LeaseLevel::kRegion, PayloadChecksum::kOff, 4608},
                      Ways{"checked", LeaseLevel::kAuto, PayloadChecksum::kOn, 4608},
                      Ways{"small_frames", LeaseLevel::kAuto, PayloadChecksum::kOn, 1024}),
    [](const auto& tested) { return tested.param.name; });

class SmallPayloadTest : public InFrameFixture {};

TEST_F(SmallPayloadTest, NothingIsLeasedOrMovedOneSided) {
  StartBoth();
  const uint64_t before = Moved();
  for (const size_t bytes : {size_t{1}, size_t{4096}}) {
    ASSERT_EQ(Run(PutFilled(bytes, 100)), absl::OkStatus());
    ASSERT_EQ(Run(GetInto(Wanted(bytes, testing::WHOLE, 100), 4096)), absl::OkStatus());
    ASSERT_EQ(Run(GetInto(Wanted(bytes, testing::PIECES, 100), 4096)), absl::OkStatus());
    ASSERT_EQ(Run(Get(Wanted(bytes), {.max_response_payload = 4096})), absl::OkStatus());
    ASSERT_EQ(Run(Get(Wanted(bytes), {})), absl::OkStatus());
  }
  EXPECT_EQ(Moved(), before);
  EXPECT_EQ(server_->stats().granted_bytes, 0u);
  ASSERT_EQ(Run(PutFilled(4097)), absl::OkStatus());
  EXPECT_GT(Moved(), before);
  ExpectNothingHeld();
}

TEST_F(SmallPayloadTest, ALimitOfOneByteTurnsItOff) {
  LinkLimits limits;
  limits.largest_payload_in_frame = 1;
  StartBoth(limits);
  const uint64_t before = Moved();
  ASSERT_EQ(Run(PutFilled(2)), absl::OkStatus());
  ASSERT_EQ(Run(GetInto(Wanted(2), 2)), absl::OkStatus());
  EXPECT_EQ(Moved(), before + 2);
  limits.largest_payload_in_frame = limits.eager_bytes + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(Runtime::Start({.limits = limits}).status()));
}

TEST_F(SmallPayloadTest, APayloadLargerThanTheCallersRoomFailsTheCallWithTheSizeNeeded) {
  StartBoth();
  for (const testing::How how : {testing::WHOLE, testing::PIECES}) {
    for (const absl::Status& status : {Run(Get(Wanted(100, how), {.max_response_payload = 99})),
                                       Run(GetInto(Wanted(100, how), 99))}) {
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
      EXPECT_NE(status.message().find("100"), absl::string_view::npos) << status;
    }
  }
  ExpectNothingHeld();
}

// The server may still run the handler, but never had access to the memory.
TEST_F(SmallPayloadTest, ACallThatIsGivenUpHasItsMemoryBackAtOnce) {
  StartBoth();
  auto hold = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(4096));
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer into, co_await channel_->AllocateBuffer(4096));
    Payload payload = std::move(buffer);
    WithPayload<PutReply> reply;
    testing::HoldRequest request;
    request.set_linger_us(100'000'000);
    const absl::Status status = co_await stub_->Hold(request, reply,
                                                     {.deadline = std::chrono::milliseconds(200),
                                                      .request_payload = std::move(payload),
                                                      .response_payload_into = std::move(into),
                                                      .returned_payload = &payload});
    EXPECT_EQ(payload.size(), 4096u);
    EXPECT_EQ(reply.payload.size(), 4096u);
    co_return status;
  };
  EXPECT_TRUE(absl::IsDeadlineExceeded(Run(hold())));
  service_.let_go = true;
  ExpectNothingHeld();
}

// --- budgets

class SmallPayloadMemoryTest : public InFrameFixture {
 protected:
  static constexpr size_t kBudget = 64 << 10;

  void Start(const LinkLimits& servers, ServerOptions options = {}) {
    server_runtime_ = StartRuntime({.limits = servers, .clock = &clock_});
    ServeWith(service_, std::move(options));
    StartClient();
  }
  static LinkLimits Patient() {
    LinkLimits limits;
    // The server may still await the client's Ready when the test moves its clock.
    limits.ping_interval = limits.connect_timeout = std::chrono::hours(100);
    limits.idle_timeout = Duration::zero();
    return limits;
  }
  struct Ended {
    std::atomic<bool> done{false};
    absl::Status status;
  };
  Task<void> PutLater(Ended& ended) {
    ended.status = co_await PutFilled(1000);
    ended.done = true;
  }
  Task<void> HoldFilled(size_t bytes) {
    absl::StatusOr<Buffer> buffer = co_await Filled(bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    if (!buffer.ok()) co_return;
    (void)co_await stub_->Hold(testing::HoldRequest(), {.request_payload = *std::move(buffer)});
  }

  MovedClock clock_;
};

// As handlers of a cache do.
TEST_F(SmallPayloadMemoryTest, ARequestWaitsForMemoryThatHandlersKeep) {
  LinkLimits limits = Patient();
  limits.memory.receive_bytes = kBudget;
  service_.keep = true;
  // The client may have more than there is.
  Start(limits, {.max_bytes_per_client = 2 * kBudget, .memory_wait = std::chrono::hours(2)});
  const size_t all = kBudget / 4096;
  for (size_t i = 0; i < all; ++i) ASSERT_EQ(Run(PutFilled(4096)), absl::OkStatus());
  Ended waits;
  client_runtime_->Spawn(PutLater(waits));
  Eventually([&] { return server_->stats().receive_memory.waiting == 1; }, "it waits");
  EXPECT_EQ(service_.puts, static_cast<int>(all));
  // Taken before they are free: the handler that waits keeps its own then.
  std::exchange(service_.kept, {}).clear();
  Eventually([&] { return waits.done.load(); }, "there is memory");
  EXPECT_EQ(waits.status, absl::OkStatus());
  EXPECT_EQ(service_.wrong, 0);
  // The memory never comes free.
  service_.kept.clear();
  for (size_t i = 0; i < all; ++i) ASSERT_EQ(Run(PutFilled(4096)), absl::OkStatus());
  Ended fails;
  client_runtime_->Spawn(PutLater(fails));
  Eventually([&] { return server_->stats().receive_memory.waiting == 1; }, "it waits");
  clock_.moved_by = std::chrono::hours(3);
  Eventually([&] { return fails.done.load(); }, "its wait is over");
  EXPECT_TRUE(absl::IsResourceExhausted(fails.status)) << fails.status;
  EXPECT_EQ(OutcomeOf(fails.status), Outcome::kNotExecuted);
  service_.kept.clear();
  ExpectNothingHeld();
}

TEST_F(SmallPayloadMemoryTest, ARequestCountsInItsClientsShareUntilItsHandlerEnds) {
  Start(Patient(), {.max_bytes_per_client = 3000, .memory_wait = std::chrono::hours(2)});
  client_runtime_->Spawn(HoldFilled(2500));
  Eventually([this] { return service_.holding == 1; }, "a handler has most of the share");
  Ended waits;
  client_runtime_->Spawn(PutLater(waits));
  Eventually([this] { return server_->stats().calls == 2; }, "it came");
  EXPECT_EQ(server_->stats().receive_memory.waiting, 0u);
  clock_.moved_by = std::chrono::hours(3);
  Eventually([&] { return waits.done.load(); }, "its wait is over");
  EXPECT_TRUE(absl::IsResourceExhausted(waits.status)) << waits.status;
  EXPECT_NE(waits.status.message().find("max_bytes_per_client"), absl::string_view::npos);
  EXPECT_EQ(service_.puts, 0);
}

TEST_F(SmallPayloadMemoryTest, AResponseWaitsForTheClientsMemory) {
  StartServer();
  StartClient({.limits = Patient(), .clock = &clock_});
  auto get = [this](uint64_t most, bool frees) -> Task<absl::Status> {
    BufferPool& pool = PayloadMemoryOf(*client_runtime_)->landing();
    std::vector<Buffer> all = co_await TakeAll(pool, size_t{32} << 20);
    absl::Status status;
    bool ended = false;
    TaskScope scope(client_runtime_->executor(0));
    scope.Spawn([&]() -> Task<void> {
      status = co_await Get(Wanted(3000, testing::WHOLE, 100), {.max_response_payload = most});
      ended = true;
    });
    while (pool.stats().waiting == 0 && !ended) (void)co_await Pause();
    EXPECT_FALSE(ended) << "there is no memory";
    if (frees) {
      all.clear();
    } else {
      clock_.Advance(kMaxMemoryWait);
    }
    co_await scope.Join();
    co_return status;
  };
  for (const uint64_t most : {0, 4000}) {
    EXPECT_EQ(Run(get(most, true)), absl::OkStatus());
    const absl::Status status = Run(get(most, false));
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
  }
  ExpectNothingHeld();
}

}  // namespace payload_in_frame_test
}  // namespace verbena::internal
