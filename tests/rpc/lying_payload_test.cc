// A peer that lies about a payload in a frame ends its own link. A payload that arrives changed
// ends its call with DATA_LOSS, and one that the client's .proto does not know with UNIMPLEMENTED.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rpc/payload_service.h"
#include "tests/rpc/rogue_peer.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/shard/runtime.h"

namespace verbena::internal {
namespace lying_payload_test {

using testing::GetReply;
using testing::GetRequest;

class LyingServerTest : public PayloadFixture {
 protected:
  using Answer = std::function<std::string(const RequestBulk& request, std::string* rest)>;

  // One Get with `into_bytes` of room, which a rogue answers with a header and the bytes behind it.
  absl::Status GetFrom(size_t into_bytes, const ResponseBulk& answer, size_t bytes_behind,
                       const LinkLimits& limits = RoguesLimits()) {
    return CallRogue(Called::kGet, into_bytes, answer, bytes_behind, limits);
  }
  // The same of any call. The responses of all but Get have no payloads; only Put's request may
  // have one.
  enum class Called { kGet, kPut, kSurprise };
  absl::Status CallRogue(Called called, size_t into_bytes, const ResponseBulk& answer,
                         size_t bytes_behind, const LinkLimits& limits = RoguesLimits()) {
    client_runtime_ = StartRuntime({.limits = limits});
    std::unique_ptr<Runtime> rogue_runtime = StartRuntime();
    std::unique_ptr<MessageListener> listener =
        *CoreOf(*rogue_runtime).shard(0).bootstrap().Listen("127.0.0.1:0");
    channel_ = std::make_unique<Channel>(*client_runtime_, listener->address());
    stub_ = std::make_unique<testing::Payloads::Stub>(*channel_);
    std::thread rogue_thread([&] {
      RoguePeer rogue(*rogue_runtime);
      rogue.eager_bytes = LinkLimits().eager_bytes;
      rogue.AcceptFrom(*listener);
      const RogueFrame request = rogue.Receive()[0];
      if (into_bytes > 0) {
        absl::StatusOr<RequestBulk> bulk =
            ParseRequestBulk(request.body.data(), request.body.size());
        EXPECT_TRUE(bulk.ok() && bulk->room_in_frame) << bulk.status();
      }
      RogueFrame frame = Response(request.header.call_slot, request.header.call_generation);
      frame.header.flags = kFrameHasBulk;
      frame.body.resize(ResponseBulk::kEncodedBytes + bytes_behind, 'x');
      answer.Encode(frame.body.data());
      rogue.Send(EncodeSend(kCorrect, {frame}));
      EXPECT_TRUE(rogue.IsDropped());
    });
    absl::Status status = Run(called == Called::kGet   ? Get(into_bytes)
                              : called == Called::kPut ? Put()
                                                       : Surprise());
    stub_.reset();
    channel_.reset();
    client_runtime_.reset();
    rogue_thread.join();
    return status;
  }
  Task<absl::Status> Put() {
    testing::PutReply reply;
    co_return co_await stub_->Put(testing::PutRequest(), reply);
  }
  Task<absl::Status> Surprise() {
    GetReply reply;
    co_return co_await stub_->Surprise(GetRequest(), reply);
  }
  Task<absl::Status> Get(size_t into_bytes) {
    Buffer into;
    if (into_bytes > 0) {
      VERBENA_CO_ASSIGN_OR_RETURN(into, co_await channel_->AllocateBuffer(into_bytes));
    }
    WithPayload<GetReply> reply;
    VERBENA_CO_RETURN_IF_ERROR(
        co_await stub_->Get(GetRequest(), reply, {.response_payload_into = std::move(into)}));
    got_ = std::string(reply.payload.data(), reply.payload.size());
    co_return absl::OkStatus();
  }

  std::string got_;
};

TEST_F(LyingServerTest, AHonestAnswerInTheFrameIsTaken) {
  const ResponseBulk answer{.has_payload = true, .payload_bytes = 7, .payload_in_frame = true};
  EXPECT_EQ(GetFrom(7, answer, 7), absl::OkStatus());
  EXPECT_EQ(got_, "xxxxxxx");
}

TEST_F(LyingServerTest, APayloadInTheFrameThatCannotBeEndsTheLink) {
  struct Lie {
    const char* name;
    size_t into_bytes;
    ResponseBulk answer;
    size_t bytes_behind;
  };
  for (const Lie& lie : {
           Lie{"past the end",
               100,
               {.has_payload = true, .payload_bytes = 8, .payload_in_frame = true},
               7},
           Lie{"past the end, size unknown",
               0,
               {.has_payload = true, .payload_bytes = 1 << 20, .payload_in_frame = true},
               4000},
           Lie{"no bytes", 100, {.has_payload = true, .payload_in_frame = true}, 8},
           Lie{"no payload", 100, {.payload_bytes = 8, .payload_in_frame = true}, 8},
           Lie{"larger than the caller's memory",
               100,
               {.has_payload = true, .payload_bytes = 101, .payload_in_frame = true},
               101},
           Lie{"in memory that was not leased", 100, {.has_payload = true, .payload_bytes = 8}, 0},
           Lie{"in memory that was not asked for",
               100,
               {.has_payload = true, .payload_bytes = 8, .payload_in_asked = true},
               0},
       }) {
    SCOPED_TRACE(lie.name);
    const absl::Status status = GetFrom(lie.into_bytes, lie.answer, lie.bytes_behind);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  }
}

// Nobody would take it, and a checksum over it would read what is not there.
TEST_F(LyingServerTest, APayloadOfAMethodWithoutOneEndsItsCallIfItIsInTheFrameOrEmpty) {
  LinkLimits limits = RoguesLimits();
  limits.payload_checksum = PayloadChecksum::kOn;
  const ResponseBulk in_frame{.has_payload = true, .payload_bytes = 7, .payload_in_frame = true};
  const ResponseBulk no_bytes{.has_payload = true};
  for (const Called call : {Called::kPut, Called::kSurprise}) {
    for (const ResponseBulk& answer : {in_frame, no_bytes}) {
      const absl::Status status = CallRogue(call, 0, answer, answer.payload_bytes, limits);
      EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
      EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
    }
  }
}

// It would lie where nothing was leased.
TEST_F(LyingServerTest, APayloadOfAMethodWithoutOneEndsTheLinkIfItIsElsewhere) {
  const ResponseBulk in_landing{.has_payload = true, .payload_bytes = 7};
  const ResponseBulk in_asked{.has_payload = true, .payload_bytes = 7, .payload_in_asked = true};
  const ResponseBulk with_message{.has_payload = true, .message_bytes = 7};
  for (const Called call : {Called::kPut, Called::kSurprise}) {
    for (const ResponseBulk& answer : {in_landing, in_asked, with_message}) {
      CapturedLog log;
      const absl::Status status = CallRogue(call, 0, answer, 0);
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      const std::string method = call == Called::kPut ? "Put" : "Surprise";
      EXPECT_NE(status.message().find("a call of verbena.testing.Payloads/" + method),
                absl::string_view::npos)
          << status;
      const std::vector<std::string> lines = log.Take();
      EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
        return line.find("breaks the protocol") != std::string::npos &&
               line.find("verbena.testing.Payloads/" + method) != std::string::npos;
      }));
    }
  }
}

TEST_F(LyingServerTest, APayloadThatIsNotWhatItsChecksumSaysIsDataLoss) {
  LinkLimits limits = RoguesLimits();
  limits.payload_checksum = PayloadChecksum::kOn;
  const ResponseBulk answer{
      .has_payload = true, .payload_bytes = 7, .checksum = 1, .payload_in_frame = true};
  const absl::Status status = GetFrom(100, answer, 7, limits);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
}

class LyingClientTest : public PayloadFixture {
 protected:
  // The status with which the server answers a Put of `bytes_behind` bytes behind its header; -1 if
  // it ends the link instead.
  int PutAt(const RequestBulk& bulk, size_t bytes_behind,
            const std::function<void(std::string&)>& spoil = nullptr) {
    RoguePeer rogue(*client_runtime_);
    rogue.ConnectTo(server_->address());
    RogueFrame frame = Request("verbena.testing.Payloads/Put", 0, 0);
    frame.header.flags = kFrameHasBulk;
    frame.body.resize(bulk.encoded_bytes());
    bulk.Encode(frame.body.data());
    for (size_t i = 0; i < bytes_behind; ++i) frame.body += PatternAt(i);
    if (spoil) spoil(frame.body);
    rogue.Send(EncodeSend(kCorrect, {frame}));
    if (expects_answer_) return rogue.Receive()[0].header.status_code;
    return rogue.IsDropped() ? -1 : 0;
  }

  bool expects_answer_ = false;
};

TEST_F(LyingClientTest, APayloadInTheFrameThatCannotBeEndsTheLink) {
  StartBoth(RoguesLimits());
  const RequestBulk right{.has_payload = true, .payload_in_frame = true, .payload_bytes = 8};
  expects_answer_ = true;
  EXPECT_EQ(PutAt(right, 8), 0);
  EXPECT_EQ(service_.wrong, 0);
  expects_answer_ = false;
  RequestBulk lie = right;
  EXPECT_EQ(PutAt(lie, 7), -1) << "past the end";
  lie.payload_bytes = 0;
  EXPECT_EQ(PutAt(lie, 8), -1) << "no bytes";
  lie = right;
  lie.has_payload = false;
  EXPECT_EQ(PutAt(lie, 8), -1) << "no payload";
  lie = right;
  lie.grant = 0;
  EXPECT_EQ(PutAt(lie, 8), -1) << "in a grant, too";
  lie = right;
  lie.source_count = 1;
  lie.sources[0] = {.address = 4096, .bytes = 8};
  EXPECT_EQ(PutAt(lie, 8), -1) << "to be read, too";
  lie = right;
  lie.message_bytes = 8;
  EXPECT_EQ(PutAt(lie, 8), -1) << "with a message elsewhere";
  EXPECT_EQ(PutAt(right, 8, [](std::string& body) { body[21] |= 8; }), -1) << "an unknown flag";
  RequestBulk room{.room_in_frame = true};
  EXPECT_EQ(PutAt(room, 0), -1) << "room for nothing";
  room.landing = {.bytes = 8, .rkey = 1};
  EXPECT_EQ(PutAt(room, 0), -1) << "room with a key";
  // As much as the smaller of both sides' frames takes, and one byte more.
  room.landing = {.bytes =
                      MaxBodyBytes(LinkParameters{}.eager_bytes) - ResponseBulk::kEncodedBytes};
  expects_answer_ = true;
  EXPECT_EQ(PutAt(room, 0), 0);
  expects_answer_ = false;
  ++room.landing.bytes;
  EXPECT_EQ(PutAt(room, 0), -1) << "room beyond a frame";
  EXPECT_EQ(service_.puts, 2);
}

TEST_F(LyingClientTest, APayloadThatIsNotWhatItsChecksumSaysReachesNoHandler) {
  LinkLimits limits = RoguesLimits();
  limits.payload_checksum = PayloadChecksum::kOn;
  StartBoth(limits);
  expects_answer_ = true;
  EXPECT_EQ(
      PutAt({.has_payload = true, .payload_in_frame = true, .payload_bytes = 8, .checksum = 1}, 8),
      static_cast<int>(absl::StatusCode::kDataLoss));
  EXPECT_EQ(service_.puts, 0);
}

}  // namespace lying_payload_test
}  // namespace verbena::internal
