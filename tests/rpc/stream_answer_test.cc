// A server that breaks the rules of streams loses its link. What only comes behind a stream's end
// is no violation. No peer makes a link walk over all of its streams again and again.

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/rpc/rogue_stream.h"
#include "tests/support/turn.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/stream/windows.h"

namespace verbena::internal {
namespace {

class CountingStream final : public UntoldStream {
 public:
  int heard = 0;

 private:
  void OnStreamLinkTight() override { ++heard; }
};

// A peer that fills the window again and again makes nobody walk over all streams each time.
TEST(StreamLinkTest, AStreamHearsOnceThatItsLinksWindowIsUsedUp) {
  StreamLink link;
  std::vector<CountingStream> streams(1000);
  for (CountingStream& stream : streams) link.AddUntold(stream);
  FrameHeader frame;
  frame.kind = FrameKind::kStreamMessage;
  frame.outcome = kCountsInLink;
  frame.body_bytes = 60000;
  while (!link.is_tight()) ASSERT_EQ(link.OnReceived(frame), absl::OkStatus());
  link.TellUntold();
  for (const CountingStream& stream : streams) {
    EXPECT_EQ(stream.heard, 1);
    EXPECT_FALSE(stream.linked());
  }
}

// A rogue in place of a server. The test's client reads nothing.
struct Answer {
  const char* name;
  std::vector<RogueFrame> frames;
  bool closes = true;
};

std::vector<Answer> AnswersOfAServer() {
  const uint8_t more = kFrameMessageApart;
  std::vector<RogueFrame> beyond = Times(65, Message(ItemBytes(4040)));
  return {
      {"MessagesBeyondTheWindow", beyond},
      {"End", {End()}},
      {"ResponseWithinAMessage", {Message("abc", more, 10), Response(0, 0)}},
      {"MessageOfAnUnusedSlot",
       {Frame(FrameKind::kStreamMessage, ItemBytes(10), 0, 0, /*slot=*/5)}},
      {"MessageOfAGenerationToCome",
       {Frame(FrameKind::kStreamMessage, ItemBytes(10), 0, 0, 0, /*generation=*/1)}},
      {"WindowThatGoesBack", {Window(1)}},
      {"MessageBeyondAllBounds", {Message("abc", more, (64u << 20) + 1)}},
      {"StatusBeyondItsBound", Times(65, Beside(std::string(4050, 's')))},
      {"StatusInAnEmptyPart", {Beside("")}},
      {"StatusWithAFlag", {Beside("abc", more)}},
      {"StatusOfAStreamThatEndsWell", {Beside("abc"), Response(0, 0)}},
      {"StatusInTwoPlaces", {Beside("abc"), Failure("abc")}},
      {"StatusInTwoPlacesAtOnce", {Beside("abc"), Failure("abc", more)}},
      {"StatusThatNeverCame", {Failure("", more)}},
      {"StatusBehindTheResponse", {Response(0, 0), Beside("abc")}, /*closes=*/false},
      {"MessageBehindTheResponse", {Response(0, 0), Message(ItemBytes(10))}, /*closes=*/false},
      {"WindowBehindTheResponse", {Response(0, 0), Window(1 << 20)}, /*closes=*/false},
  };
}

class StreamAnswerTest : public StreamTest, public ::testing::WithParamInterface<size_t> {};

TEST_P(StreamAnswerTest, EndsTheLinkIfItIsAViolation) {
  const Answer answer = AnswersOfAServer()[GetParam()];
  auto server = Runtime::Start({.device = RogueDevice()});
  ASSERT_TRUE(server.ok()) << server.status();
  auto listener = *CoreOf(**server).shard(0).bootstrap().Listen("127.0.0.1:0");
  RuntimeOptions options;
  options.device = RogueDevice();
  options.limits = RoguesLimits();
  options.limits.initial_credits = 128;
  // The rogue's silence ends no link.
  options.limits.ping_interval = std::chrono::hours(1);
  StartClient(listener->address(), std::move(options));
  RoguePeer rogue(**server, RogueDevice());
  rogue.methods = {MethodId(kEcho), MethodId(kSay)};
  std::thread script([&] {
    rogue.AcceptFrom(*listener);
    std::vector<RogueFrame> opening = rogue.Receive();
    while (opening[0].header.kind != FrameKind::kRequest) opening = rogue.Receive();
    EXPECT_EQ(opening[0].header.flags, kFrameOpensStream);
    for (const RogueFrame& frame : answer.frames) rogue.Send(EncodeSend(kCorrect, {frame}));
    if (answer.closes) {
      EXPECT_TRUE(rogue.IsDropped());
    } else {
      // The link still works.
      std::vector<RogueFrame> call = rogue.Receive();
      while (call[0].header.kind != FrameKind::kRequest) call = rogue.Receive();
      rogue.Send(EncodeSend(kCorrect,
                            {Response(call[0].header.call_slot, call[0].header.call_generation)}));
    }
  });
  auto run = [&]() -> Task<absl::Status> {
    ClientReaderWriter<testing::StreamItem, testing::StreamItem> stream = stub_->Echo();
    const TimePoint limit = Clock::Real().Now() + RoguePeer::kPatience;
    // Finish() would drop what nobody reads.
    if (answer.closes) {
      while ((co_await stream.WritesDone()).ok()) {
        if (Clock::Real().Now() > limit) co_return absl::InternalError("the link stays");
        co_await Turn(client_runtime_->executor(0));
      }
    }
    co_return co_await stream.Finish();
  };
  const absl::Status status = Run(run());
  EXPECT_EQ(status.code(), answer.closes ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk)
      << status;
  if (!answer.closes) {
    EXPECT_EQ(Run(SayOnce()), absl::OkStatus());
  }
  script.join();
}

INSTANTIATE_TEST_SUITE_P(All, StreamAnswerTest,
                         ::testing::Range<size_t>(0, AnswersOfAServer().size()),
                         [](const auto& info) {
                           return std::string(AnswersOfAServer()[info.param].name);
                         });

}  // namespace
}  // namespace verbena::internal
