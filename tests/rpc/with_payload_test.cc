// A stub's reply carries its payload in every shape of a call: absent, empty and full payloads are
// told apart, failed and abandoned calls leave nothing behind, and the caller's memory comes back.

#include "verbena/rpc/call.h"

#include <atomic>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/rpc/payload_service.h"
#include "tests/transport/coro/counted_new.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {
namespace {

using testing::GetReply;
using testing::GetRequest;
using testing::PutReply;
using testing::PutRequest;
using Stub = testing::Payloads::Stub;

// Methods without a response payload return their message alone.
static_assert(std::same_as<decltype(std::declval<Stub>().Put(std::declval<PutRequest&>())),
                           UnaryCall<const PutRequest&, PutReply>>);
static_assert(std::same_as<decltype(std::declval<Stub>().Get(std::declval<GetRequest&>())),
                           UnaryCall<const GetRequest&, WithPayload<GetReply>>>);
static_assert(std::same_as<decltype(std::declval<Stub>().Swap(PutRequest())),
                           UnaryCall<PutRequest, WithPayload<PutReply>>>);
static_assert(std::same_as<UnaryCall<PutRequest, WithPayload<PutReply>>::value_type,
                           absl::StatusOr<WithPayload<PutReply>>>);
static_assert(
    std::same_as<UnaryCall<PutRequest, WithPayload<PutReply>&>::value_type, absl::Status>);

GetRequest Wanted(size_t bytes, testing::How how = testing::WHOLE, size_t filler = 0) {
  GetRequest request;
  request.set_bytes(bytes);
  request.set_how(how);
  request.set_filler_bytes(filler);
  return request;
}

void ExpectPattern(const WithPayload<GetReply>& got, size_t bytes, size_t filler) {
  EXPECT_TRUE(got.has_payload);
  EXPECT_EQ(got.payload.size(), bytes);
  EXPECT_TRUE(IsPattern(got.payload.view()));
  EXPECT_EQ(got->filler().size(), filler);
  EXPECT_EQ(got.message.filler().size(), filler);
}

class WithPayloadTest : public PayloadFixture {
 protected:
  void SetUp() override { StartBoth(); }
  void TearDown() override { ExpectNothingHeld(); }
};

TEST_F(WithPayloadTest, EachShapeOfACallGivesMessageAndPayload) {
  auto calls = [this]() -> Task<absl::Status> {
    const GetRequest request = Wanted(5000, testing::WHOLE, 7);
    VERBENA_CO_ASSIGN_OR_RETURN(const WithPayload<GetReply> borrowed, co_await stub_->Get(request));
    ExpectPattern(borrowed, 5000, 7);
    VERBENA_CO_ASSIGN_OR_RETURN(
        WithPayload<GetReply> owned,
        co_await stub_->Get(Wanted(6000, testing::WHOLE, 8), {.max_response_payload = 9000}));
    ExpectPattern(owned, 6000, 8);
    owned->clear_filler();
    EXPECT_EQ(owned.message.filler().size(), 0u);
    WithPayload<GetReply> filled;
    VERBENA_CO_RETURN_IF_ERROR(co_await stub_->Get(request, filled));
    ExpectPattern(filled, 5000, 7);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(calls()), absl::OkStatus());
}

TEST_F(WithPayloadTest, CallsWithPayloadsGoWhereverTasksGo) {
  auto calls = [this]() -> Task<absl::Status> {
    const GetRequest request = Wanted(5000);
    WithPayload<GetReply> filled;
    auto [one, two, status] = co_await WhenAll(stub_->Get(request), stub_->Get(Wanted(70000)),
                                               stub_->Get(request, filled));
    VERBENA_CO_RETURN_IF_ERROR(status);
    ExpectPattern(one.value(), 5000, 0);
    ExpectPattern(two.value(), 70000, 0);
    ExpectPattern(filled, 5000, 0);
    Task<absl::StatusOr<WithPayload<GetReply>>> later = stub_->Get(Wanted(100));
    ExpectPattern((co_await std::move(later)).value(), 100, 0);
    std::vector<UnaryCall<GetRequest, WithPayload<GetReply>>> many;
    for (size_t bytes : {1, 2, 3}) many.push_back(stub_->Get(Wanted(bytes)));
    for (size_t i = 0; i < many.size(); ++i) {
      ExpectPattern((co_await std::move(many[i])).value(), i + 1, 0);
    }
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(calls()), absl::OkStatus());
  ExpectPattern(client_runtime_->BlockOn(stub_->Get(Wanted(4096))).value(), 4096, 0);
}

TEST_F(WithPayloadTest, ANewCallDropsWhatAFormerOneLeft) {
  auto calls = [this]() -> Task<absl::Status> {
    WithPayload<GetReply> reply;
    const auto get = [&](size_t bytes, testing::How how,
                         CallOptions options) -> Task<absl::Status> {
      co_return co_await stub_->Get(Wanted(bytes, how), reply, std::move(options));
    };
    VERBENA_CO_RETURN_IF_ERROR(co_await get(5000, testing::WHOLE, {}));
    ExpectPattern(reply, 5000, 0);
    VERBENA_CO_RETURN_IF_ERROR(co_await get(0, testing::WHOLE, {}));
    EXPECT_FALSE(reply.has_payload);
    EXPECT_FALSE(reply.payload) << "the former payload's memory went home";
    VERBENA_CO_RETURN_IF_ERROR(co_await get(5000, testing::WHOLE, {}));
    // The next call may have the former payload's memory.
    const char* data = reply.payload.data();
    VERBENA_CO_RETURN_IF_ERROR(
        co_await get(4000, testing::WHOLE, {.response_payload_into = std::move(reply.payload)}));
    ExpectPattern(reply, 4000, 0);
    EXPECT_EQ(reply.payload.data(), data);
    VERBENA_CO_RETURN_IF_ERROR(co_await get(0, testing::EMPTY, {}));
    EXPECT_TRUE(reply.has_payload);
    EXPECT_EQ(reply.payload.size(), 0u);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(calls()), absl::OkStatus());
}

TEST_F(WithPayloadTest, AFailedCallGivesItsMemoryBackAndSaysThatThereIsNoPayload) {
  auto call = [this](size_t into_bytes, uint64_t max, int fail_code) -> Task<absl::Status> {
    WithPayload<GetReply> reply;
    VERBENA_CO_RETURN_IF_ERROR(co_await stub_->Get(Wanted(100), reply));
    GetRequest request = Wanted(5000);
    request.set_fail_code(fail_code);
    Buffer into;
    if (into_bytes > 0) {
      VERBENA_CO_ASSIGN_OR_RETURN(into, co_await channel_->AllocateBuffer(into_bytes));
    }
    const char* data = into.data();
    const absl::Status status = co_await stub_->Get(
        request, reply, {.response_payload_into = std::move(into), .max_response_payload = max});
    EXPECT_FALSE(reply.has_payload);
    EXPECT_EQ(reply.payload.size(), into_bytes);
    EXPECT_EQ(reply.payload.data(), data);
    // The shape that returns its reply returns the failure alone.
    EXPECT_EQ((co_await stub_->Get(request, {.max_response_payload = max})).status(), status);
    co_return status;
  };
  constexpr int kAborted = static_cast<int>(absl::StatusCode::kAborted);
  EXPECT_TRUE(absl::IsAborted(Run(call(0, 0, kAborted))));
  EXPECT_TRUE(absl::IsAborted(Run(call(9000, 0, kAborted))));
  EXPECT_TRUE(absl::IsResourceExhausted(Run(call(0, 4000, 0)))) << "the payload is larger";
}

TEST_F(WithPayloadTest, ARequestsMemoryComesBackToWhoeverAsksForIt) {
  auto put = [this](size_t bytes, Payload* back, Deadline deadline) -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(bytes));
    VERBENA_CO_ASSIGN_OR_RETURN(
        PutReply reply, co_await stub_->Put(PutRequest(), {.deadline = deadline,
                                                           .request_payload = std::move(buffer),
                                                           .returned_payload = back}));
    EXPECT_TRUE(reply.right());
    co_return absl::OkStatus();
  };
  Payload back;
  for (size_t bytes : {100, 100'000}) {
    EXPECT_EQ(Run(put(bytes, &back, {})), absl::OkStatus());
    EXPECT_EQ(back.size(), bytes);
    EXPECT_TRUE(IsPattern(back.part(0)));
    EXPECT_EQ(Run(put(bytes, nullptr, {})), absl::OkStatus());
    back = {};
    EXPECT_TRUE(absl::IsDeadlineExceeded(Run(put(bytes, &back, Duration(-1)))));
    EXPECT_EQ(back.size(), bytes);
  }
  back = {};
}

// Its caller has gone on: nobody expects the reply to change.
TEST_F(WithPayloadTest, AnAbandonedCallLeavesTheReplyAlone) {
  auto abandon = [this](size_t bytes) -> Task<absl::Status> {
    WithPayload<PutReply> reply;
    Payload back;
    const int held = service_.holding;
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(bytes));
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer into, co_await channel_->AllocateBuffer(bytes));
    {
      TaskScope scope(client_runtime_->executor(0));
      scope.Spawn([&]() -> Task<void> {
        (void)co_await stub_->Hold({}, reply,
                                   {.request_payload = std::move(buffer),
                                    .response_payload_into = std::move(into),
                                    .returned_payload = &back});
      });
      while (service_.holding == held) (void)co_await Pause();
      EXPECT_FALSE(reply.payload);
      reply.has_payload = true;
    }
    while (service_.released <= held) (void)co_await Pause();
    (void)co_await Pause();
    EXPECT_TRUE(reply.has_payload) << "nobody has written it";
    EXPECT_FALSE(reply.payload);
    EXPECT_FALSE(back.present());
    co_return absl::OkStatus();
  };
  for (size_t bytes : {100, 100'000}) EXPECT_EQ(Run(abandon(bytes)), absl::OkStatus());
}

TEST_F(WithPayloadTest, ACallThatFillsItsCallersReplyAllocatesNothing) {
  auto calls = [this](size_t bytes) -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(bytes));
    WithPayload<PutReply> reply;
    VERBENA_CO_ASSIGN_OR_RETURN(reply.payload, co_await channel_->AllocateBuffer(bytes));
    const PutRequest request;
    Payload payload = std::move(buffer);
    size_t before = 0;
    constexpr int kWarmUp = 2000;
    for (int i = 0; i < kWarmUp + 1000; ++i) {
      if (i == kWarmUp) before = CountedNews();
      VERBENA_CO_RETURN_IF_ERROR(
          co_await stub_->Swap(request, reply,
                               {.request_payload = std::move(payload),
                                .response_payload_into = std::move(reply.payload),
                                .returned_payload = &payload}));
      EXPECT_EQ(reply.payload.size(), bytes);
    }
    // Other threads of the process allocate, too: the more, the longer the calls take.
    EXPECT_LT(CountedNews() - before, 500u) << "of 1000 calls with " << bytes << " bytes";
    co_return absl::OkStatus();
  };
  for (size_t bytes : {100, 4096, 60'000}) EXPECT_EQ(Run(calls(bytes)), absl::OkStatus());
}

// Adds the largest trailing metadata that is taken beside the payload.
class TaggingService final : public testing::Payloads::Service {
 public:
  Task<absl::Status> Get(ServerContext& context, const GetRequest& request,
                         GetReply& reply) override {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload, co_await context.AllocateBuffer(request.bytes()));
    FillPattern(payload.view());
    context.SetResponsePayload(std::move(payload));
    reply.mutable_filler()->assign(request.filler_bytes(), 'f');
    for (size_t bytes = 8192; bytes > 0; --bytes) {
      tag_bytes = bytes;
      if (context.AddTrailingMetadata(kKey, std::string(bytes, 't')).ok()) {
        co_return absl::OkStatus();
      }
    }
    co_return absl::InternalError("no room for a tag");
  }

  static constexpr std::string_view kKey = "tag";
  std::atomic<size_t> tag_bytes{0};
};

class TaggedPayloadTest : public PayloadFixture {
 protected:
  // A Get into memory of just `bytes`.
  Task<absl::Status> GetInto(size_t bytes, size_t filler) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer into, co_await channel_->AllocateBuffer(bytes));
    CallInfo info;
    VERBENA_CO_ASSIGN_OR_RETURN(
        const WithPayload<GetReply> got,
        co_await stub_->Get(Wanted(bytes, testing::WHOLE, filler),
                            {.info = &info, .response_payload_into = std::move(into)}));
    ExpectPattern(got, bytes, filler);
    EXPECT_EQ(info.trailing_metadata.Get(TaggingService::kKey),
              std::string(tagging_.tag_bytes, 't'));
    co_return absl::OkStatus();
  }
  uint64_t Transfers() { return server_runtime_->endpoint_stats(0).traffic.transfers; }

  TaggingService tagging_;
};

// A payload in the frame takes all of the room that its caller named.
TEST_F(TaggedPayloadTest, TheLargestTrailingMetadataLeavesThePayloadItsRoom) {
  LinkLimits limits;
  limits.largest_payload_in_frame = 4500;
  server_runtime_ = StartRuntime({.limits = limits});
  ServeWith(tagging_);
  StartClient({.limits = limits});
  const size_t body = MaxBodyBytes(limits.eager_bytes);
  for (const size_t bytes : {size_t{1}, size_t{1000}, size_t{4096}, size_t{4500}}) {
    const uint64_t before = Transfers();
    EXPECT_EQ(Run(GetInto(bytes, 0)), absl::OkStatus()) << bytes;
    EXPECT_EQ(Transfers(), before) << bytes;
    if (bytes < 4096) continue;
    EXPECT_EQ(kContextHeaderBytes + Metadata::kEntryBytes + TaggingService::kKey.size() +
                  tagging_.tag_bytes + ResponseBulk::kEncodedBytes + bytes,
              body)
        << "the frame is full";
    // The message finds no room beside them.
    EXPECT_EQ(Run(GetInto(bytes, 10)), absl::OkStatus()) << bytes;
    EXPECT_EQ(Transfers(), before + 1) << bytes;
  }
  StopBoth();
}

}  // namespace
}  // namespace verbena::internal
