// Payloads arrive whole in every way in which they can be sent, leased and answered with, copied
// once each way. A payload that a method, buffer or handler cannot take fails its call with the
// reason.

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "tests/rpc/first_device.h"
#include "tests/rpc/payload_service.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/shard/open_device.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace payload_test {

struct Ways {
  const char* name;
  LeaseLevel level;
  PayloadChecksum checksum;
};

void PrintTo(const Ways& ways, std::ostream* out) { *out << ways.name; }

class PayloadTest : public PayloadFixture, public ::testing::WithParamInterface<Ways> {
 protected:
  void SetUp() override {
    if (GetParam().level == LeaseLevel::kStrict &&
        !(*OpenDevice("auto"))->capabilities().memory_windows) {
      GTEST_SKIP() << "the device has no memory windows";
    }
    LinkLimits limits;
    limits.leases.level = GetParam().level;
    limits.payload_checksum = GetParam().checksum;
    StartBoth(limits);
  }

  void TearDown() override {
    if (!IsSkipped()) ExpectNothingHeld();
  }

  Task<absl::Status> PutOnce(size_t bytes, size_t filler = 0) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(bytes));
    Payload payload = std::move(buffer);
    testing::PutRequest request;
    request.mutable_filler()->assign(filler, 'm');
    testing::PutReply reply;
    VERBENA_CO_RETURN_IF_ERROR(co_await stub_->Put(
        request, reply, {.request_payload = std::move(payload), .returned_payload = &payload}));
    EXPECT_EQ(reply.bytes(), bytes);
    EXPECT_TRUE(reply.right());
    EXPECT_EQ(payload.size(), bytes) << "the buffer comes back";
    co_return absl::OkStatus();
  }

  Task<absl::Status> GetOnce(testing::GetRequest request, CallOptions options) {
    WithPayload<testing::GetReply> reply;
    VERBENA_CO_RETURN_IF_ERROR(co_await stub_->Get(request, reply, std::move(options)));
    EXPECT_EQ(reply.payload.size(), request.bytes());
    EXPECT_TRUE(IsPattern(reply.payload.view()));
    EXPECT_EQ(reply->filler(), std::string(request.filler_bytes(), 'f'));
    co_return absl::OkStatus();
  }

  static testing::GetRequest Wanted(size_t bytes, testing::How how = testing::WHOLE,
                                    size_t filler = 0) {
    testing::GetRequest request;
    request.set_bytes(bytes);
    request.set_how(how);
    request.set_filler_bytes(filler);
    return request;
  }
};

const size_t kSizes[] = {1, 4095, 4096, 4097, 65536, (1 << 20) + 5, 8 << 20};

TEST_P(PayloadTest, ARequestsPayloadArrivesWhole) {
  for (size_t bytes : kSizes) EXPECT_EQ(Run(PutOnce(bytes)), absl::OkStatus()) << bytes;
}

// Its channel's executors belong to the client's runtime.
TEST_P(PayloadTest, ACallOnAnotherRuntimesExecutorGivesItsBuffersBack) {
  auto buffers = [this]() -> Task<absl::StatusOr<std::pair<Buffer, Buffer>>> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer out, co_await Filled(5000));
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer into, co_await channel_->AllocateBuffer(9000));
    co_return std::pair(std::move(out), std::move(into));
  };
  absl::StatusOr<std::pair<Buffer, Buffer>> made = Run(buffers());
  ASSERT_TRUE(made.ok()) << made.status();
  Payload payload = std::move(made->first);
  WithPayload<testing::PutReply> reply;
  const absl::Status status =
      server_runtime_->BlockOn(stub_->Swap(testing::PutRequest(), reply,
                                           {.request_payload = std::move(payload),
                                            .response_payload_into = std::move(made->second),
                                            .returned_payload = &payload}));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_EQ(payload.size(), 5000u);
  EXPECT_EQ(reply.payload.size(), 9000u);
  EXPECT_FALSE(reply.has_payload);
}

TEST_P(PayloadTest, AResponsesPayloadArrivesInTheCallersBuffer) {
  auto get = [this](size_t bytes) -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel_->AllocateBuffer(bytes));
    const char* data = buffer.data();
    WithPayload<testing::GetReply> reply;
    VERBENA_CO_RETURN_IF_ERROR(
        co_await stub_->Get(Wanted(bytes), reply, {.response_payload_into = std::move(buffer)}));
    EXPECT_EQ(reply.payload.data(), data);
    EXPECT_TRUE(IsPattern(reply.payload.view()));
    EXPECT_EQ(reply.payload.size(), bytes);
    EXPECT_TRUE(reply.has_payload);
    co_return absl::OkStatus();
  };
  for (size_t bytes : kSizes) EXPECT_EQ(Run(get(bytes)), absl::OkStatus()) << bytes;
}

TEST_P(PayloadTest, AResponsesPayloadArrivesInALandingOfTheRuntimes) {
  for (size_t bytes : kSizes) {
    EXPECT_EQ(Run(GetOnce(Wanted(bytes), {.max_response_payload = bytes + 100})), absl::OkStatus());
  }
}

TEST_P(PayloadTest, AResponsesPayloadArrivesThoughTheCallerDoesNotKnowItsSize) {
  for (size_t bytes : kSizes) EXPECT_EQ(Run(GetOnce(Wanted(bytes), {})), absl::OkStatus()) << bytes;
}

TEST_P(PayloadTest, AServerAnswersInSlicesAndPieceByPiece) {
  for (testing::How how : {testing::SLICES, testing::PIECES}) {
    for (size_t bytes : {size_t{7}, size_t{30000}, size_t{1 << 20}}) {
      EXPECT_EQ(Run(GetOnce(Wanted(bytes, how), {.max_response_payload = bytes})),
                absl::OkStatus());
    }
  }
}

// Beside messages of any size.
TEST_P(PayloadTest, AnEmptyPayloadOfARequestIsNotTheSameAsNone) {
  auto put = [this](Payload payload, size_t filler) -> Task<testing::PutReply> {
    const bool present = payload.present();
    testing::PutRequest request;
    request.mutable_filler()->assign(filler, 'm');
    testing::PutReply reply;
    EXPECT_EQ(
        co_await stub_->Put(request, reply,
                            {.request_payload = std::move(payload), .returned_payload = &payload}),
        absl::OkStatus());
    EXPECT_EQ(reply.bytes(), 0u);
    EXPECT_EQ(payload.present(), present) << "it comes back as it was";
    co_return reply;
  };
  auto put_buffer = [&](size_t filler) -> Task<testing::PutReply> {
    absl::StatusOr<Buffer> buffer = co_await channel_->AllocateBuffer(100);
    buffer->set_size(0);
    co_return co_await put(*std::move(buffer), filler);
  };
  for (size_t filler : {size_t{0}, size_t{4552}, size_t{100000}}) {
    EXPECT_TRUE(Run(put(Payload::Empty(), filler)).has_payload()) << filler;
    EXPECT_TRUE(Run(put_buffer(filler)).has_payload()) << filler;
    EXPECT_FALSE(Run(put({}, filler)).has_payload()) << filler;
  }
}

TEST_P(PayloadTest, AnEmptyPayloadOfAResponseIsNotTheSameAsNone) {
  auto get = [this](testing::How how, size_t filler, CallOptions options) -> Task<bool> {
    WithPayload<testing::GetReply> reply{.has_payload = how != testing::EMPTY};
    EXPECT_EQ(co_await stub_->Get(Wanted(0, how, filler), reply, std::move(options)),
              absl::OkStatus());
    EXPECT_EQ(reply.payload.size(), 0u);
    EXPECT_EQ(reply->filler().size(), filler);
    co_return reply.has_payload;
  };
  auto get_into = [&](testing::How how, size_t filler) -> Task<bool> {
    absl::StatusOr<Buffer> buffer = co_await channel_->AllocateBuffer(100);
    co_return co_await get(how, filler, {.response_payload_into = *std::move(buffer)});
  };
  for (size_t filler : {size_t{0}, size_t{4542}, size_t{100000}}) {
    for (const testing::How how : {testing::EMPTY, testing::WHOLE}) {
      const bool empty = how == testing::EMPTY;
      EXPECT_EQ(Run(get(how, filler, {})), empty) << filler;
      EXPECT_EQ(Run(get(how, filler, {.max_response_payload = 100})), empty) << filler;
      EXPECT_EQ(Run(get_into(how, filler)), empty) << filler;
    }
  }
}

TEST_P(PayloadTest, LargeMessagesTravelBesidePayloadsOfAnySize) {
  for (size_t filler :
       {size_t{3000}, size_t{4552}, size_t{4608}, size_t{100000}, size_t{3 << 20}}) {
    EXPECT_EQ(Run(PutOnce(5000, filler)), absl::OkStatus()) << filler;
    EXPECT_EQ(Run(GetOnce(Wanted(5000, testing::WHOLE, filler), {.max_response_payload = 5000})),
              absl::OkStatus());
    EXPECT_EQ(Run(GetOnce(Wanted(5000, testing::WHOLE, filler), {})), absl::OkStatus());
    EXPECT_EQ(Run(GetOnce(Wanted(0, testing::WHOLE, filler), {})), absl::OkStatus());
  }
}

TEST_P(PayloadTest, PayloadsBothWaysInOneCall) {
  auto swap = [this](size_t bytes) -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(bytes));
    WithPayload<testing::PutReply> reply;
    VERBENA_CO_RETURN_IF_ERROR(co_await stub_->Swap(
        testing::PutRequest(), reply,
        {.request_payload = std::move(buffer), .max_response_payload = bytes}));
    EXPECT_TRUE(reply->right());
    EXPECT_EQ(reply.payload.size(), bytes);
    EXPECT_TRUE(IsPattern(reply.payload.view(), /*inverted=*/true));
    co_return absl::OkStatus();
  };
  for (size_t bytes : kSizes) EXPECT_EQ(Run(swap(bytes)), absl::OkStatus()) << bytes;
}

TEST_P(PayloadTest, ARequestIsGatheredFromSlicesOfSeveralBuffers) {
  auto put = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer first, co_await channel_->AllocateBuffer(20000));
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer second, co_await channel_->AllocateBuffer(5000));
    FillPattern(first.Slice(100, 6000), 0);
    FillPattern(first.Slice(9000, 8000), 6000);
    FillPattern(second.view(), 14000);
    Payload payload;
    payload.Add(std::move(first), {{100, 6000}, {9000, 8000}});
    payload.Add(std::move(second));
    testing::PutReply reply;
    VERBENA_CO_RETURN_IF_ERROR(
        co_await stub_->Put(testing::PutRequest(), reply, {.request_payload = std::move(payload)}));
    EXPECT_EQ(reply.bytes(), 19000u);
    EXPECT_TRUE(reply.right());
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(put()), absl::OkStatus());
}

TEST_P(PayloadTest, ManyCallsAtOnceWaitForMemoryAndWindowsAndMixNothingUp) {
  auto many = [this]() -> Task<absl::Status> {
    TaskScope scope(client_runtime_->executor(0));
    int failed = 0;
    for (int i = 0; i < 400; ++i) {
      scope.Spawn([this, i, &failed]() -> Task<void> {
        const size_t bytes = 1 + i * 997 % 200000;
        absl::Status status =
            i % 2 == 0 ? co_await PutOnce(bytes, i * 31 % 6000)
                       : co_await GetOnce(Wanted(bytes), {.max_response_payload = bytes});
        if (!status.ok() && ++failed < 5) ADD_FAILURE() << i << ": " << status;
      });
    }
    co_await scope.Join();
    EXPECT_EQ(failed, 0);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(many()), absl::OkStatus());
}

class LargePayloadTest : public PayloadFixture {};

TEST_F(LargePayloadTest, AServerChecksItInSlicesBetweenWhichOthersRun) {
  constexpr size_t kSlices = 64;
  LinkLimits limits;
  limits.payload_checksum = PayloadChecksum::kOn;
  StartBoth(limits);
  const auto put = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(kSlices * kChecksumSliceBytes));
    testing::PutReply reply;
    co_return co_await stub_->Put(testing::PutRequest(), reply,
                                  {.request_payload = std::move(buffer)});
  };
  const auto resumptions = [this] {
    return server_runtime_->BlockOn([](Runtime& runtime) -> Task<uint64_t> {
      co_return runtime.executor(0).stats().resumed;
    }(*server_runtime_));
  };
  ASSERT_EQ(Run(put()), absl::OkStatus()) << "so that the memory is registered";
  const uint64_t before = resumptions();
  ASSERT_EQ(Run(put()), absl::OkStatus());
  EXPECT_GE(resumptions() - before, kSlices - 1);
}

// The wire makes the only copy. Either device may make it, so the copies of both are counted.
TEST(PayloadCopiesTest, APayloadIsCopiedOnceEachWay) {
  absl::StatusOr<std::unique_ptr<SoftDevice>> near = SoftDevice::Create({.name = "near"});
  absl::StatusOr<std::unique_ptr<SoftDevice>> far = SoftDevice::Create({.name = "far"});
  ASSERT_TRUE(near.ok() && far.ok());
  PayloadService service;
  LinkLimits limits;
  limits.leases.largest_grant_bytes = limits.max_payload_bytes;
  std::unique_ptr<Runtime> server_runtime =
      *RuntimeCore::Start({.limits = limits}, {.use = far->get()});
  std::unique_ptr<Server> server = *Server::Start(*server_runtime, {&service}, {});
  std::unique_ptr<Runtime> client_runtime = *RuntimeCore::Start({}, {.use = near->get()});
  constexpr size_t kBytes = 1 << 20;
  auto call = [&]() -> Task<absl::Status> {
    Channel channel(*client_runtime, server->address());
    testing::Payloads::Stub stub(channel);
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel.AllocateBuffer(kBytes));
    FillPattern(buffer.view());
    const CopiedBytes before = (*far)->copied_bytes();
    const CopiedBytes before_near = (*near)->copied_bytes();
    Payload payload = std::move(buffer);
    testing::PutReply put;
    VERBENA_CO_RETURN_IF_ERROR(
        co_await stub.Put(testing::PutRequest(), put,
                          {.request_payload = std::move(payload), .returned_payload = &payload}));
    EXPECT_TRUE(put.right());
    testing::GetRequest request;
    request.set_bytes(kBytes);
    WithPayload<testing::GetReply> got;
    VERBENA_CO_RETURN_IF_ERROR(
        co_await stub.Get(request, got, {.response_payload_into = payload.TakeBuffer()}));
    EXPECT_TRUE(IsPattern(got.payload.view()));
    // The server reads the request's payload and writes the response's.
    CopiedBytes copied = (*far)->copied_bytes() - before;
    EXPECT_EQ(copied.direct_read_bytes, kBytes);
    EXPECT_EQ(copied.direct_write_bytes, kBytes);
    copied += (*near)->copied_bytes() - before_near;
    EXPECT_EQ(copied.direct_read_bytes + copied.direct_write_bytes, 2 * kBytes);
    EXPECT_EQ(copied.kernel_read_bytes + copied.kernel_write_bytes + copied.ring_bytes, 0u);
    // By then a landing is granted, and the client writes.
    const CopiedBytes before_written = (*near)->copied_bytes();
    VERBENA_CO_RETURN_IF_ERROR(
        co_await stub.Put(testing::PutRequest(), put, {.request_payload = std::move(got.payload)}));
    EXPECT_TRUE(put.right());
    const CopiedBytes written = (*near)->copied_bytes() - before_written;
    EXPECT_EQ(written.direct_write_bytes, kBytes);
    EXPECT_EQ(written.direct_read_bytes + written.kernel_read_bytes + written.kernel_write_bytes +
                  written.ring_bytes,
              0u);
    EXPECT_LT(copied.send_bytes + copied.receive_bytes + copied.inline_bytes, 10'000u) << "frames";
    co_return absl::OkStatus();
  };
  EXPECT_EQ(client_runtime->BlockOn(call()), absl::OkStatus());
  server.reset();
  client_runtime.reset();
  server_runtime.reset();
}

// --- what is wrong

// The request is borrowed until the call ends, and the call may wait before it serializes it.
TEST_P(PayloadTest, ARequestThatChangesWhileItsCallWaitsForMemoryFailsTheCall) {
  auto call = [this]() -> Task<absl::Status> {
    BufferPool& pool = PayloadMemoryOf(*client_runtime_)->landing();
    std::vector<Buffer> all;
    for (int i = 0; i < 2; ++i) {
      VERBENA_CO_ASSIGN_OR_RETURN(Buffer half, co_await pool.Allocate(64 << 20));
      all.push_back(std::move(half));
    }
    testing::GetRequest request = Wanted(5);
    absl::Status ended;
    TaskScope scope(client_runtime_->executor(0));
    scope.Spawn([&]() -> Task<void> {
      WithPayload<testing::GetReply> reply;
      ended = co_await stub_->Get(request, reply, {.max_response_payload = 8192});
    });
    while (pool.stats().waiting == 0) (void)co_await Pause();
    request.set_bytes(uint64_t{1} << 40);
    all.clear();
    co_await scope.Join();
    co_return ended;
  };
  absl::Status status = Run(call());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
}

TEST_P(PayloadTest, AnUnexpectedPayloadIsRefused) {
  auto unexpected = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(10));
    Payload payload = std::move(buffer);
    testing::GetReply reply;
    absl::Status refused = co_await stub_->Surprise(
        Wanted(0), reply, {.request_payload = std::move(payload), .returned_payload = &payload});
    EXPECT_EQ(payload.size(), 10u) << "the buffer comes back";
    co_return refused;
  };
  absl::Status status = Run(unexpected());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

TEST_P(PayloadTest, ABufferThatIsTooSmallFailsTheCallWithTheSizeNeeded) {
  absl::Status status = Run(GetOnce(Wanted(5000), {.max_response_payload = 4999}));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(status.message()).find("5000"), std::string::npos) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
  status = Run(GetOnce(Wanted(30000, testing::PIECES), {.max_response_payload = 25000}));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST_P(PayloadTest, APayloadThatItsMethodDoesNotDeclareIsTheHandlersFault) {
  auto call = [this]() -> Task<absl::Status> {
    testing::GetReply reply;
    co_return co_await stub_->Surprise(Wanted(100), reply);
  };
  EXPECT_EQ(Run(call()).code(), absl::StatusCode::kInternal);
}

TEST_P(PayloadTest, AFailedCallGivesTheBuffersBack) {
  auto get = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel_->AllocateBuffer(9000));
    const char* data = buffer.data();
    WithPayload<testing::GetReply> reply;
    testing::GetRequest request = Wanted(9000);
    request.set_fail_code(static_cast<int>(absl::StatusCode::kDataLoss));
    absl::Status status =
        co_await stub_->Get(request, reply, {.response_payload_into = std::move(buffer)});
    EXPECT_EQ(reply.payload.data(), data);
    EXPECT_EQ(reply.payload.size(), 9000u) << "as it was leased";
    EXPECT_FALSE(reply.has_payload);
    co_return status;
  };
  EXPECT_EQ(Run(get()).code(), absl::StatusCode::kDataLoss);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, PayloadTest,
    ::testing::Values(Ways{"auto", LeaseLevel::kAuto, PayloadChecksum::kAuto},
                      // By choice, where it is not what auto means.
                      Ways{"strict", LeaseLevel::kStrict, PayloadChecksum::kOff},
                      Ways{"region", LeaseLevel::kRegion, PayloadChecksum::kOff},
                      Ways{"checked", LeaseLevel::kAuto, PayloadChecksum::kOn}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace payload_test
}  // namespace verbena::internal
