// Bounds of pinned bytes refuse what is beyond them. A payload whose call waits for its turn
// arrives when that comes, and its memory is free when the call ends without one.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "tests/rpc/expect_overload.h"
#include "tests/rpc/payload_service.h"
#include "tests/rpc/rogue_peer.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/metrics.h"

namespace verbena::internal {
namespace admission_of_payloads_test {

using std::chrono::hours;

class AdmissionOfPayloadsTest : public PayloadFixture {
 protected:
  static constexpr size_t kBytes = 64 * 1024;

  void Start(AdmissionOptions admission, LinkLimits limits = {}) {
    limits.leases.granted_bytes_per_client = 0;
    server_runtime_ = StartRuntime({.limits = limits});
    ServeWith(service_, {.admission = std::move(admission)});
    StartClient();
    other_runtime_ = StartRuntime();
    other_channel_ = std::make_unique<Channel>(*other_runtime_, server_->address());
  }
  static Task<absl::Status> Put(Channel& channel, size_t bytes) {
    testing::Payloads::Stub stub(channel);
    CallOptions options;
    if (bytes > 0) {
      VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel.AllocateBuffer(bytes));
      FillPattern(buffer.view());
      options.request_payload = std::move(buffer);
    }
    testing::PutReply reply;
    VERBENA_CO_RETURN_IF_ERROR(co_await stub.Put(testing::PutRequest(), reply, std::move(options)));
    co_return reply.right() ? absl::OkStatus() : absl::DataLossError("not the pattern");
  }
  static Task<void> Hold(Channel& channel, size_t bytes) {
    testing::Payloads::Stub stub(channel);
    CallOptions options;
    if (bytes > 0) {
      absl::StatusOr<Buffer> buffer = co_await channel.AllocateBuffer(bytes);
      if (!buffer.ok()) co_return;
      options.request_payload = *std::move(buffer);
    }
    WithPayload<testing::PutReply> reply;
    (void)co_await stub.Hold(testing::HoldRequest(), reply, std::move(options));
  }
  JoinHandle<void> StartHold(size_t bytes) {
    JoinHandle<void> hold = client_runtime_->Spawn(Hold(*channel_, bytes));
    Eventually([this] { return service_.holding == 1; }, "a handler has its payload");
    return hold;
  }
  absl::Status OthersPut(size_t bytes) {
    return other_runtime_->BlockOn(Put(*other_channel_, bytes));
  }
  // The bytes that the held call counted are free again.
  void ExpectRoomAfter(JoinHandle<void> hold) {
    hold.RequestCancel();
    Eventually([this] { return service_.released == 1; }, "the handler ends");
    Eventually([this] { return Run(Put(*channel_, kBytes)).ok(); }, "its bytes count no more");
  }

  std::unique_ptr<Runtime> other_runtime_;
  std::unique_ptr<Channel> other_channel_;
};

TEST_F(AdmissionOfPayloadsTest, AClientPinsAsManyBytesAsItMay) {
  Start({.max_pinned_bytes_per_client = kBytes + 1});
  EXPECT_EQ(Run(Put(*channel_, 2 * kBytes)), absl::OkStatus()) << "one larger request, alone";
  JoinHandle<void> hold = StartHold(kBytes);
  EXPECT_EQ(Run(Put(*channel_, 1)), absl::OkStatus()) << "within the bound";
  ExpectOverload(Run(Put(*channel_, 2)));
  EXPECT_EQ(server_->stats().refusals.bytes, 1u);
  EXPECT_EQ(OthersPut(kBytes), absl::OkStatus());
  ExpectRoomAfter(std::move(hold));
}

TEST_F(AdmissionOfPayloadsTest, AllClientsPinAsManyBytesAsTheyMay) {
  Start({.max_pinned_bytes = kBytes});
  JoinHandle<void> hold = StartHold(kBytes);
  ExpectOverload(OthersPut(1));
  EXPECT_EQ(OthersPut(0), absl::OkStatus()) << "it pins none";
  ExpectRoomAfter(std::move(hold));
}

TEST_F(AdmissionOfPayloadsTest, AMethodPinsAsManyBytesAsItMay) {
  Start({.methods = {{"verbena.testing.Payloads/Hold", {.max_pinned_bytes = kBytes}}}});
  JoinHandle<void> hold = StartHold(kBytes);
  EXPECT_EQ(OthersPut(kBytes), absl::OkStatus()) << "another method";
  other_runtime_->BlockOn(Hold(*other_channel_, kBytes));
  EXPECT_EQ(server_->stats().refusals.bytes, 1u);
  EXPECT_EQ(service_.holding, 1);
  ExpectRoomAfter(std::move(hold));
}

TEST_F(AdmissionOfPayloadsTest, PayloadsOfCallsThatWaitArriveWhenTheirTurnComes) {
  Start({.max_running = 2, .max_queue_age = hours(1)});
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, kBytes, size_t{4} << 20}) {
    EXPECT_EQ(Run(Put(*channel_, bytes)), absl::OkStatus()) << bytes;
  }
  ExpectNothingHeld();
}

// Otherwise the claim would count against the requests of others, or be told to come back once
// theirs are gone.
TEST_F(AdmissionOfPayloadsTest, ARequestThatClaimsMoreThanAServerTakesPinsNothing) {
  LinkLimits limits;
  limits.max_payload_bytes = size_t{1} << 20;
  const uint64_t claim = limits.max_payload_bytes + 1;
  Start({.max_running = 4, .max_queue_age = hours(1), .max_pinned_bytes = 2 * kBytes}, limits);
  JoinHandle<void> hold = StartHold(kBytes);
  RoguePeer rogue(*client_runtime_);
  rogue.ConnectTo(server_->address());
  RequestBulk bulk{.has_payload = true, .payload_bytes = claim, .source_count = 1};
  bulk.sources[0] = {.address = 4096, .bytes = claim};
  RogueFrame claims = Request("verbena.testing.Payloads/Put", 2, 1);
  claims.header.flags = kFrameHasBulk;
  claims.body.resize(bulk.encoded_bytes());
  bulk.Encode(claims.body.data());
  rogue.Send(EncodeSend(kCorrect, {claims}));
  const std::vector<RogueFrame> answers = rogue.Receive();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].header.call_slot, 2u);
  EXPECT_EQ(answers[0].header.status_code,
            static_cast<uint8_t>(absl::StatusCode::kResourceExhausted));
  for (const char* part :
       {"a request's payload of 1048577 bytes", "max_payload_bytes of 1048576"}) {
    EXPECT_NE(answers[0].body.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(server_->stats().queued, 0u);
  EXPECT_EQ(OthersPut(kBytes), absl::OkStatus());
  EXPECT_EQ(server_->stats().refusals.bytes, 0u);
  ExpectRoomAfter(std::move(hold));
  const std::string taken = fmt::format(
      "verbena_server_payload_bytes_total{{rpc_method=\"verbena.testing.Payloads/Put\","
      "message=\"request\"}} {}\n",
      2 * kBytes);
  Eventually(
      [&] {
        return server_runtime_->metrics().Text(MetricsFormat::kPrometheus).find(taken) !=
               std::string::npos;
      },
      "the bytes of the others alone count");
}

// The payload came in the request's frame, so it lies in the server's memory.
TEST_F(AdmissionOfPayloadsTest, TheMemoryOfAQueuedCallIsFreeWhenItsClientIsGone) {
  Start({.max_running = 1, .max_queue_age = hours(1)});
  EXPECT_EQ(OthersPut(4096), absl::OkStatus()) << "so that the memory is registered";
  JoinHandle<void> hold = StartHold(0);
  other_runtime_->Spawn(Hold(*other_channel_, 4096));
  Eventually([this] { return server_->stats().queued == 1; }, "the call waits");
  EXPECT_GE(server_->stats().receive_memory.in_use, 4096u);
  other_runtime_.reset();
  other_channel_.reset();
  Eventually([this] { return server_->stats().queued == 0; }, "the call is gone");
  EXPECT_EQ(server_->stats().receive_memory.in_use, 0u);
  EXPECT_EQ(service_.holding, 1);
  hold.RequestCancel();
  hold.Join();
}

TEST_F(AdmissionOfPayloadsTest, ACallWithAPayloadThatWaitsIsRefusedByAShutdownAndCountsOnce) {
  Start({.max_running = 1, .max_queue_age = hours(1)});
  const auto hold = [](Channel& channel, absl::Status& ended) -> Task<void> {
    testing::Payloads::Stub stub(channel);
    WithPayload<testing::PutReply> reply;
    ended = co_await stub.Hold(testing::HoldRequest(), reply);
  };
  absl::Status held;
  JoinHandle<void> holds = client_runtime_->Spawn(hold(*channel_, held));
  Eventually([this] { return service_.holding == 1; }, "a handler runs");
  other_runtime_->Spawn(Hold(*other_channel_, 4096));
  Eventually([this] { return server_->stats().queued == 1; }, "the call waits");
  server_->Shutdown(Duration::zero());
  holds.Join();
  EXPECT_EQ(server_->stats().queued, 0u);
  EXPECT_EQ(server_->stats().refused, 1u);
  EXPECT_EQ(server_->stats().failures, held.ok() ? 1u : 2u) << held;
}

}  // namespace admission_of_payloads_test
}  // namespace verbena::internal
