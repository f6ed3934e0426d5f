// A peer that breaks the protocol ends its own link, and harms no other.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rpc/rogue_peer.h"
#include "tests/rpc/testing_service.h"
#include "tests/transport/base/captured_log.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/shard/runtime.h"

namespace verbena::internal {
namespace malformed_test {

struct Violation {
  const char* name;
  std::vector<std::string> sends;
};

std::string WithByte(std::string bytes, size_t offset, char value) {
  bytes[offset] = value;
  return bytes;
}

// A request that tells of what it moves one-sided.
RogueFrame BulkRequest(std::string body) {
  RogueFrame frame = Request("verbena.testing.Testing/Echo", 0, 0, std::move(body));
  frame.header.flags = kFrameHasBulk;
  return frame;
}

// A call of Echo with an empty message, in the compact form.
std::string CompactEcho() {
  CompactHeader header;
  header.flags = kSendCompact;
  header.credits_issued = RoguePeer::kCredits;
  header.method = RogueMethods::NumberOf("verbena.testing.Testing/Echo");
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

std::vector<Violation> ViolationsOfAClient() {
  const std::string bulk(48, '\0');
  const std::string ping = EncodeSend(kCorrect, {RogueFrame{.header = {.kind = FrameKind::kPing}}});
  SendHeader returning = kCorrect;
  returning.credits_returned = 1;
  SendHeader reserve_seen = kCorrect;
  reserve_seen.reserve_seen = 5;
  const RogueFrame long_recall{.header = {.kind = FrameKind::kRecall}, .body = "x"};
  std::vector<Violation> all = {
      {"RandomBytes", {std::string(100, '\xa5')}},
      {"EmptySend", {std::string()}},
      {"TruncatedHeader", {ping.substr(0, 15)}},
      {"FramePastTheEnd", {ping.substr(0, 39)}},
      {"BodyPastTheEnd", {WithByte(ping, 16 + 12, 8)}},
      {"HugeBody", {WithByte(ping, 16 + 15, '\xff')}},
      {"UnknownKind", {WithByte(ping, 16 + 16, 99)}},
      {"UnknownFrameFlag", {WithByte(ping, 16 + 17, 2)}},
      {"BulkOfAPing", {WithByte(ping, 16 + 17, 1)}},
      {"BulkPastTheEnd", {EncodeSend(kCorrect, {BulkRequest(std::string(47, '\0'))})}},
      {"BulkOfTooManyPieces", {EncodeSend(kCorrect, {BulkRequest(WithByte(bulk, 20, 10))})}},
      {"BulkWithoutItsPieces", {EncodeSend(kCorrect, {BulkRequest(WithByte(bulk, 20, 1))})}},
      {"BulkOfASizeThatItsPiecesHaveNot",
       {EncodeSend(kCorrect, {BulkRequest(WithByte(bulk, 0, 1))})}},
      {"PayloadThatTheBulkSaysIsNotThere",
       {EncodeSend(kCorrect, {BulkRequest(WithByte(bulk, 21, 2))})}},
      {"BulkBeyondAllBounds", {EncodeSend(kCorrect, {BulkRequest(WithByte(bulk, 7, 1))})}},
      {"LandingThatWrapsAround",
       {EncodeSend(kCorrect, {BulkRequest(std::string(bulk).replace(
                                 24, 9, "\xff\xff\xff\xff\xff\xff\xff\xff\x01"))})}},
      {"LandingCutShort",
       {EncodeSend(kCorrect, {RogueFrame{.header = {.kind = FrameKind::kLanding}, .body = "x"}})}},
      {"LandingNeededByAClient",
       {EncodeSend(kCorrect, {RogueFrame{.header = {.kind = FrameKind::kLandingNeeded}}})}},
      {"UnknownSendFlag", {WithByte(ping, 0, '\x40')}},
      {"CompactCutOff", {CompactEcho().substr(0, 11)}},
      {"CompactWithoutItsDeadline", {WithByte(CompactEcho().substr(0, 14), 0, '\x90')}},
      {"CompactOfAnUnknownFlag", {WithByte(CompactEcho(), 0, '\xc0')}},
      {"CompactContextPastTheEnd", {WithByte(CompactEcho(), 0, '\xa0')}},
      {"CompactThatSpendsReserve", {WithByte(CompactEcho(), 0, '\x81')}},
      {"CompactReservedByte", {WithByte(CompactEcho(), 1, 1)}},
      {"CompactResponseOfAClient", {WithByte(CompactEcho(), 0, '\x84')}},
      {"CompactBulkPastTheEnd", {WithByte(CompactEcho(), 0, '\x88')}},
      {"CompactThatTakesBackCredits", {WithByte(CompactEcho(), 2, 1)}},
      {"TrailingBytes", {ping + std::string(8, '\0')}},
      {"CreditsTakenBack", {EncodeSend(Issuing(RoguePeer::kCredits - 1), {})}},
      {"ForgedCredits", {EncodeSend(Issuing(1u << 30), {})}},
      {"CreditsReturnedThatWereNotLent", {EncodeSend(returning, {})}},
      {"ReserveSeenThatWasNotSent", {EncodeSend(reserve_seen, {})}},
      {"ResponseToAServer", {EncodeSend(kCorrect, {Response(0, 0)})}},
      {"RecallWithABody", {EncodeSend(kCorrect, {long_recall})}},
      {"CallRunningAlready",
       {EncodeSend(kCorrect, {Request("verbena.testing.Testing/Wait", 3, 7),
                              Request("verbena.testing.Testing/Wait", 3, 7)})}},
      {"PastGenerationOfARunningCall",
       {EncodeSend(kCorrect, {Request("verbena.testing.Testing/Wait", 3, 7),
                              Request("verbena.testing.Testing/Wait", 3, 6)})}},
  };
  return all;
}

class ViolationTest : public RpcTest, public ::testing::WithParamInterface<Violation> {};

TEST_P(ViolationTest, EndsItsOwnLinkAlone) {
  StartBoth();
  ASSERT_EQ(Run(EchoOnce(1, "before")), absl::OkStatus());
  RoguePeer rogue(*client_runtime_);
  rogue.ConnectTo(server_->address());
  for (const std::string& bytes : GetParam().sends) rogue.Send(bytes);
  EXPECT_TRUE(rogue.IsDropped());
  EXPECT_EQ(Run(EchoOnce(2, "others do not notice")), absl::OkStatus());
  EXPECT_EQ(Run(service_.waiting.Until(0)), absl::OkStatus())
      << "the rogue's handlers are cancelled";
}

INSTANTIATE_TEST_SUITE_P(Client, ViolationTest, ::testing::ValuesIn(ViolationsOfAClient()),
                         [](const auto& info) { return info.param.name; });

class MalformedTest : public RpcTest {};

TEST_F(MalformedTest, OddButAllowedFramesKeepTheLink) {
  StartBoth();
  RoguePeer rogue(*client_runtime_);
  rogue.ConnectTo(server_->address());
  RogueFrame cancel;
  cancel.header.kind = FrameKind::kCancel;
  cancel.header.call_slot = 9;
  rogue.Send(EncodeSend(kCorrect, {cancel}));  // of a call that never was
  rogue.Send(EncodeSend(kCorrect, {}));        // neither frames nor news
  const RogueFrame pong{.header = {.kind = FrameKind::kPong}, .body = "that nobody asked for"};
  rogue.Send(EncodeSend(kCorrect, {pong}));
  const RogueFrame ping{.header = {.kind = FrameKind::kPing}, .body = std::string(100, 'p')};
  rogue.Send(EncodeSend(kCorrect, {ping}));
  const RogueFrame answer = rogue.Receive()[0];
  EXPECT_EQ(answer.header.kind, FrameKind::kPong);
  EXPECT_EQ(answer.body, std::string(100, '\0'));
  rogue.Send(EncodeSend(kCorrect, {Request("no.such/Method", 0, 0)}));
  std::vector<RogueFrame> refusal = rogue.Receive();
  EXPECT_EQ(refusal[0].header.status_code, static_cast<int>(absl::StatusCode::kUnimplemented));
  rogue.Send(EncodeSend(kCorrect, {Request("verbena.testing.Testing/Echo", 0, 1, "\xff\xff")}));
  std::vector<RogueFrame> invalid = rogue.Receive();
  EXPECT_EQ(invalid[0].header.status_code, static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(invalid[0].header.call_generation, 1u);
  rogue.Send(CompactEcho());
  EXPECT_EQ(rogue.Receive()[0].header.status_code, 0);
}

// The PONG would not fit a SEND that the rogue takes.
TEST_F(MalformedTest, APingThatIsLongerThanItsPongMayBeEndsTheLink) {
  StartBoth();
  RoguePeer rogue(*client_runtime_);
  rogue.eager_bytes = 1024;
  rogue.ConnectTo(server_->address());
  const RogueFrame ping{.header = {.kind = FrameKind::kPing}, .body = std::string(1000, 'p')};
  rogue.Send(EncodeSend(kCorrect, {ping}));
  EXPECT_TRUE(rogue.IsDropped());
  EXPECT_EQ(Run(EchoOnce(1, "others do not notice")), absl::OkStatus());
}

// Numbers that the handshake gave no method, with nothing behind the server's table.
TEST_F(MalformedTest, AMethodNumberOutOfRangeIsRefusedAndTheLinkStays) {
  StartBoth();
  RoguePeer rogue(*client_runtime_);
  rogue.ConnectTo(server_->address());
  uint32_t generation = 0;
  for (uint16_t number : {0, 9, 0x7fff, 0x8000, 0xffff}) {
    RogueFrame request = Request("", 0, ++generation);
    request.header.method = number;
    rogue.Send(EncodeSend(kCorrect, {request}));
    const FrameHeader answer = rogue.Receive()[0].header;
    EXPECT_EQ(answer.call_generation, generation);
    EXPECT_EQ(answer.status_code, static_cast<int>(absl::StatusCode::kUnimplemented)) << number;
    EXPECT_EQ(answer.outcome, static_cast<int>(Outcome::kNotExecuted)) << number;
  }
}

// Requests may come before the client's word that it is ready, which then never comes.
TEST_F(MalformedTest, ACallOfALinkWhoseHandshakeFailsRunsToItsEnd) {
  StartBoth();
  {
    RoguePeer rogue(*client_runtime_);
    rogue.ConnectTo(server_->address(), /*confirms=*/false);
    rogue.Send(EncodeSend(kCorrect, {Request("verbena.testing.Testing/Wait", 0, 0)}));
    EXPECT_EQ(Run(service_.waiting.Until(1)), absl::OkStatus()) << "the handler runs";
  }
  EXPECT_EQ(Run(service_.waiting.Until(0)), absl::OkStatus()) << "it is cancelled";
  EXPECT_EQ(Run(EchoOnce(1, "others do not notice")), absl::OkStatus());
}

TEST_F(MalformedTest, AnAnswerThatWaitsForReadyLeavesOnceItHasCome) {
  LinkLimits limits;
  limits.ping_interval = std::chrono::hours(1);  // the answer comes alone
  StartServer({}, {.limits = limits});
  StartClient();
  RoguePeer rogue(*client_runtime_);
  rogue.ConnectTo(server_->address(), /*confirms=*/false);
  rogue.Send(EncodeSend(kCorrect, {Request("verbena.testing.Nobody/Knows", 7, 0)}));
  Eventually([&] { return server_->stats().refused == 1; }, "the request is refused");
  rogue.Confirm();
  const std::vector<RogueFrame> answers = rogue.Receive();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].header.call_slot, 7u);
}

// The answers wait, but not in the buffers that all links share. Each such client would find at
// least one, as every link does, so as many as there are buffers would take all.
TEST_F(MalformedTest, ClientsThatNeverSayReadyKeepNoSendBuffers) {
  constexpr int kFrames = 4;
  LinkLimits limits;
  limits.send_buffers = 16;
  // None of the clients loses its link because it is silent meanwhile.
  limits.connect_timeout = limits.ping_interval = std::chrono::hours(1);
  StartServer({}, {.device = RogueDevice(), .limits = limits});
  StartClient();
  std::vector<std::unique_ptr<RoguePeer>> rogues;
  std::vector<RogueFrame> requests;
  for (uint32_t slot = 0; slot < kFrames; ++slot) {
    requests.push_back(Request("verbena.testing.Testing/Echo", slot, 0));
  }
  SendHeader issuing = kCorrect;
  issuing.credits_issued = RoguePeer::kCredits + 64;
  for (uint32_t i = 0; i < limits.send_buffers; ++i) {
    rogues.push_back(std::make_unique<RoguePeer>(*client_runtime_));
    rogues.back()->eager_bytes = 1024;
    rogues.back()->ConnectTo(server_->address(), /*confirms=*/false);
    rogues.back()->Send(EncodeSend(issuing, requests));
  }
  const uint64_t all = uint64_t{kFrames} * limits.send_buffers;
  Eventually([&] { return server_runtime_->endpoint_stats(0).traffic.frames_received == all; },
             "all of them have come");
  EXPECT_EQ(Run(EchoOnce(1, "others are answered")), absl::OkStatus());
  EXPECT_EQ(server_runtime_->endpoint_stats(0).links_lost, 0u) << "only once those have gone";
}

// A link is open before its client has said Ready, and may be lost before then. Its remains are
// freed when the next link is accepted, mostly at the same address. (AddressSanitizer gives no
// address twice so soon: the fault shows without it.)
TEST_F(MalformedTest, AHandshakeThatFailedLateFreedALaterLinkAtTheSameAddress) {
  StartBoth();
  CapturedLog log;
  auto rogue = std::make_unique<RoguePeer>(*client_runtime_);
  rogue->ConnectTo(server_->address(), /*confirms=*/false);
  rogue->Send("no header");
  Eventually([&] { return server_runtime_->endpoint_stats(0).links_lost == 1; },
             "its link is lost");
  EXPECT_EQ(Run(EchoOnce(1, "over a later link")), absl::OkStatus());
  log.Take();
  rogue.reset();
  bool refused = false;
  Eventually(
      [&] {
        for (const std::string& line : log.Take())
          refused |= line.find("not accepted") != line.npos;
        return refused;
      },
      "its handshake has failed");
  EXPECT_EQ(Run(EchoOnce(2, "still there")), absl::OkStatus());
}

TEST_F(MalformedTest, SendingWithoutCreditsEndsTheLink) {
  StartBoth();
  RoguePeer rogue(*client_runtime_);
  rogue.ConnectTo(server_->address());
  // More than its window and all that could be returned meanwhile on the two reserve credits.
  for (int i = 0; i < 50; ++i) rogue.Send(EncodeSend(kCorrect, {}));
  EXPECT_TRUE(rogue.IsDropped());
}

// A rogue server: what it may answer to a call of a correct client.
class RogueServerTest : public RpcTest {
 protected:
  // Makes one call to a rogue that answers its request with `answer(request)`; returns how the call
  // ended.
  absl::Status CallRogue(const std::function<std::string(const FrameHeader&)>& answer,
                         RuntimeOptions client = {}) {
    client_runtime_ = StartRuntime(std::move(client));
    rogue_runtime_ = StartRuntime();
    std::unique_ptr<MessageListener> listener =
        *CoreOf(*rogue_runtime_).shard(0).bootstrap().Listen("127.0.0.1:0");
    channel_ = std::make_unique<Channel>(*client_runtime_, listener->address());
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
    std::thread rogue_thread([&] {
      RoguePeer rogue(*rogue_runtime_);
      rogue.AcceptFrom(*listener);
      const FrameHeader request = rogue.Receive()[0].header;
      rogue.Send(answer(request));
      dropped_ = rogue.IsDropped();
    });
    // Over a link that is there the call is a plain one.
    EXPECT_EQ(Run(channel_->Connect()), absl::OkStatus());
    absl::Status status = Run(EchoOnce(1, "hello"));
    channel_.reset();
    client_runtime_.reset();
    rogue_thread.join();
    return status;
  }

  std::unique_ptr<Runtime> rogue_runtime_;
  bool dropped_ = false;
};

TEST_F(RogueServerTest, AResponseOfAFutureGenerationEndsTheLink) {
  absl::Status status = CallRogue([](const FrameHeader& request) {
    return EncodeSend(kCorrect, {Response(request.call_slot, request.call_generation + 1)});
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  EXPECT_TRUE(dropped_);
}

TEST_F(RogueServerTest, AResponseToASlotOutOfRangeEndsTheLink) {
  absl::Status status = CallRogue([](const FrameHeader& request) {
    return EncodeSend(kCorrect, {Response(request.call_slot + 1000, request.call_generation)});
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(dropped_);
}

TEST_F(RogueServerTest, AResponseOfAPastGenerationIsLateAndHarmless) {
  absl::Status status = CallRogue([](const FrameHeader& request) {
    return EncodeSend(kCorrect, {Response(request.call_slot, request.call_generation - 1),
                                 Response(request.call_slot, request.call_generation)});
  });
  // The second one is an empty reply, which parses, and is not the request's: the call got it.
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST_F(RogueServerTest, AReplyThatDoesNotParseFailsItsCallAlone) {
  absl::Status status = CallRogue([](const FrameHeader& request) {
    RogueFrame response = Response(request.call_slot, request.call_generation);
    response.body = "\xff\xff\xff";
    return EncodeSend(kCorrect, {response});
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
}

RogueFrame LandingNeeded(const FrameHeader& request) {
  RogueFrame frame;
  frame.header.kind = FrameKind::kLandingNeeded;
  frame.header.call_slot = request.call_slot;
  frame.header.call_generation = request.call_generation;
  frame.body.resize(LandingRequest::kEncodedBytes);
  LandingRequest{.message_bytes = 64 << 10}.Encode(frame.body.data());
  return frame;
}

// One SEND does both: the coroutine that was to give the landing has not begun when the link ends.
TEST_F(RogueServerTest, AServerThatAsksForALandingAndBreaksTheLinkAtOnceFailsTheCall) {
  absl::Status status = CallRogue([](const FrameHeader& request) {
    return EncodeSend(kCorrect, {LandingNeeded(request),
                                 Response(request.call_slot, request.call_generation + 1)});
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kMaybeExecuted);
  EXPECT_TRUE(dropped_);
}

TEST_F(RogueServerTest, AServerThatAsksForALandingAndAnswersAtOnceEndsTheCall) {
  absl::Status status = CallRogue([](const FrameHeader& request) {
    return EncodeSend(
        kCorrect, {LandingNeeded(request), Response(request.call_slot, request.call_generation)});
  });
  // The empty reply, which differs from the request.
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

RogueFrame Grant(uint32_t slot, const RemoteRange& range) {
  RogueFrame frame;
  frame.header.kind = FrameKind::kGrant;
  frame.header.argument = slot;
  frame.body.resize(kLandingBytes);
  EncodeLanding(range, frame.body.data());
  return frame;
}

TEST_F(RogueServerTest, AGrantThatCannotBeEndsTheLink) {
  const RemoteRange good{.address = 4096, .bytes = 4096, .rkey = 1};
  const RogueFrame revoke{.header = {.kind = FrameKind::kRevoke, .argument = kMaxGrantSlots}};
  RogueFrame truncated = Grant(0, good);
  truncated.body.resize(kLandingBytes - 1);
  const std::vector<std::vector<RogueFrame>> lies = {
      {Grant(kMaxGrantSlots, good)},
      {Grant(0, {.address = 4096, .bytes = 0, .rkey = 1})},
      {Grant(0, {.address = ~uint64_t{0} - 100, .bytes = 4096, .rkey = 1})},
      {Grant(0, {.address = 4096, .bytes = uint64_t{1} << 40, .rkey = 1})},
      {Grant(0, good), Grant(0, good)},
      {truncated},
      {revoke},
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    absl::Status status =
        CallRogue([&](const FrameHeader&) { return EncodeSend(kCorrect, lies[i]); });
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_TRUE(dropped_);
  }
}

TEST_F(RogueServerTest, AGrantOfASlotWhoseReturnHasNotLeftEndsTheLink) {
  const RemoteRange good{.address = 4096, .bytes = 4096, .rkey = 1};
  const RogueFrame revoke{.header = {.kind = FrameKind::kRevoke, .argument = 0}};
  // Each RETURN ends the grant's key, for which it takes a SEND of its own: more than there are
  // credits for.
  std::vector<RogueFrame> frames;
  for (uint32_t i = 0; i < RoguePeer::kCredits + kMaxGrantSlots + 2; ++i) {
    frames.push_back(Grant(0, good));
    frames.push_back(revoke);
  }
  absl::Status status = CallRogue([&](const FrameHeader&) { return EncodeSend(kCorrect, frames); },
                                  {.limits = RoguesLimits()});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(dropped_);
}

TEST_F(RogueServerTest, ARequestToAClientEndsTheLink) {
  absl::Status status = CallRogue([](const FrameHeader&) {
    return EncodeSend(kCorrect, {Request("verbena.testing.Testing/Echo", 0, 0)});
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(dropped_);
}

}  // namespace malformed_test
}  // namespace verbena::internal
