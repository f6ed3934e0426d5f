// A server that takes what it can get leaves memory and links to other servers: it asks for
// landings and never answers, or says GOAWAY on each link.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rpc/payload_service.h"
#include "tests/rpc/rogue_peer.h"
#include "tests/support/moved_clock.h"
#include "tests/support/turn.h"
#include "tests/support/watched.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/testing/fake_clock.h"
#include "verbena/transport/coro/scope.h"

namespace verbena::internal {
namespace hostile_server_test {

using std::chrono::milliseconds;

constexpr size_t kMemory = size_t{16} << 20;

// Rogues in place of a server, one for each link, and the way to it.
struct Hostile {
  Hostile()
      : runtime(*Runtime::Start({.device = RogueDevice()})),
        listener(*CoreOf(*runtime).shard(0).bootstrap().Listen("127.0.0.1:0")) {}

  RoguePeer& Accept() {
    peers.push_back(std::make_unique<RoguePeer>(*runtime, RogueDevice()));
    peers.back()->AcceptFrom(*listener);
    return *peers.back();
  }
  static void SayGoAway(RoguePeer& peer) {
    peer.Send(EncodeSend(kCorrect, {{.header = {.kind = FrameKind::kGoAway}}}));
  }
  // Asks for half of the client's landing memory, for each of the next `calls` calls.
  static void AskForLandings(RoguePeer& peer, size_t calls) {
    std::vector<RogueFrame> asked;
    while (asked.size() < calls) {
      for (const RogueFrame& request : peer.Receive()) {
        RogueFrame frame;
        frame.header.kind = FrameKind::kLandingNeeded;
        frame.header.call_slot = request.header.call_slot;
        frame.header.call_generation = request.header.call_generation;
        frame.body.resize(LandingRequest::kEncodedBytes);
        LandingRequest{.message_bytes = kMemory / 2}.Encode(frame.body.data());
        asked.push_back(std::move(frame));
      }
    }
    peer.Send(EncodeSend(kCorrect, asked));
  }

  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<MessageListener> listener;
  std::vector<std::unique_ptr<RoguePeer>> peers;
};

class HostileServerTest : public PayloadFixture {
 protected:
  void TearDown() override {
    if (script_.joinable()) script_.join();
    StopBoth();
  }

  // Nothing but the clock's move reaches a limit, and no silence ends a link.
  void StartClient(PayloadChecksum checksum = PayloadChecksum::kOff) {
    StartClientOn(clock_, checksum);
  }
  void StartClientOn(Clock& clock, PayloadChecksum checksum = PayloadChecksum::kOff) {
    LinkLimits limits = RoguesLimits();
    limits.payload_checksum = checksum;
    limits.memory.landing_bytes = kMemory;
    limits.max_message_bytes = kMemory;
    limits.ping_interval = limits.connect_timeout = std::chrono::hours(1);
    client_runtime_ = StartRuntime({.device = RogueDevice(), .limits = limits, .clock = &clock});
    channel_ = std::make_unique<Channel>(*client_runtime_, hostile_.listener->address());
    stub_ = std::make_unique<testing::Payloads::Stub>(*channel_);
  }

  // Moves the client's clock, and returns when all timers that are due by then have run.
  Task<void> LetPass(Duration time) {
    const TimePoint then = client_runtime_->executor(0).now() + time;
    clock_.Advance(time);
    (void)co_await SleepUntil(then);
  }

  // A call to the hostile server.
  Task<void> Call(absl::Status& ended) {
    testing::GetReply reply;
    ended = co_await stub_->Surprise(testing::GetRequest(), reply);
    ++ended_;
  }
  // The same, which connects again as soon as it may.
  Task<void> CallSomeLink() {
    absl::Status status;
    do {
      testing::GetReply reply;
      status = co_await stub_->Surprise(testing::GetRequest(), reply);
      co_await LetPass(2 * LinkLimits().longest_reconnect_pause);
    } while (OutcomeOf(status) == Outcome::kNotExecuted && !stops_);
    if (status.message().find("drain at once") != std::string::npos) ++closed_;
  }
  Task<void> CallUntilAllLinksDrain(TaskScope& scope, int links) {
    while (drained_ < links) {
      scope.Spawn(CallSomeLink());
      (void)co_await Sleep(milliseconds(5));
    }
  }

  Task<absl::Status> Call() {
    co_return (co_await stub_->Surprise(testing::GetRequest())).status();
  }
  // Connects, or calls, again and again until the server has had as many links. Nothing but the
  // client's refusals lets time pass. Returns how much did.
  template <typename Attempt>
  Duration PassedWhile(Attempt attempt, const std::atomic<int>& links, int count,
                       const char* refusal) {
    Duration passed{};
    bool told = false;
    while (links < count) {
      const absl::Status status = attempt();
      if (status.ok() || OutcomeOf(status) == Outcome::kMaybeExecuted) continue;
      told |= status.message().find(refusal) != std::string::npos;
      standing_.Advance(*client_runtime_, milliseconds(1));
      passed += milliseconds(1);
    }
    EXPECT_TRUE(told) << "callers hear why they wait";
    standing_.Run();
    return passed;
  }
  // The least time of so many pauses, each of which is twice the one before, give or take a fifth.
  static Duration LeastOfPauses(int pauses) {
    Duration least{};
    for (int i = 0; i < pauses; ++i) least += (1 << i) * Connection::kInitialBackoff * 4 / 5;
    return least;
  }

  uint32_t ClientLinks() { return client_runtime_->endpoint_stats(0).links; }

  MovedClock clock_;
  testing::FakeClock standing_;
  Hostile hostile_;
  std::thread script_;
  std::atomic<int> drained_{0};  // links on which the server said GOAWAY
  std::atomic<int> lost_{0};     // links that the server accepted and dropped
  Watched<bool> has_landing_;
  Watched<int> ended_;  // calls
  std::atomic<bool> stops_{false};
  int closed_ = 0;  // calls whose link was one too many
};

TEST_F(HostileServerTest, AServerThatAsksForLandingsLeavesHalfOfTheMemoryToOthers) {
  StartServer({.device = RogueDevice(), .limits = RoguesLimits()});
  StartClient();
  script_ = std::thread([this] {
    RoguePeer& peer = hostile_.Accept();
    Hostile::AskForLandings(peer, 2);
    EXPECT_EQ(peer.Receive()[0].header.kind, FrameKind::kLanding);
    has_landing_ = true;
  });
  Channel honest(*client_runtime_, server_->address());
  testing::Payloads::Stub honest_stub(honest);
  auto client = [&]() -> Task<absl::Status> {
    absl::Status first;
    absl::Status second;
    TaskScope scope(client_runtime_->executor(0));
    scope.Spawn(Call(first));
    scope.Spawn(Call(second));
    (void)co_await has_landing_.Until(true);
    testing::GetRequest request;
    request.set_how(testing::EMPTY);
    request.set_filler_bytes(64 << 10);
    WithPayload<testing::GetReply> reply;
    absl::Status status = co_await honest_stub.Get(request, reply);
    EXPECT_EQ(reply->filler().size(), size_t{64} << 10);
    clock_.moved_by = kMaxMemoryWait;
    (void)co_await ended_.Until([](int calls) { return calls > 0; });
    const absl::Status& refused = first.ok() ? second : first;
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_NE(refused.message().find(hostile_.listener->address() + " asked for"),
              std::string::npos)
        << refused;
    scope.RequestCancel();
    co_await scope.Join();
    co_return status;
  };
  EXPECT_EQ(Run(client()), absl::OkStatus());
}

TEST_F(HostileServerTest, AServerThatGotItsLandingAndNeverAnswersLosesItsLink) {
  StartClient();
  script_ = std::thread([this] {
    RoguePeer& peer = hostile_.Accept();
    Hostile::AskForLandings(peer, 1);
    EXPECT_EQ(peer.Receive()[0].header.kind, FrameKind::kLanding);
    has_landing_ = true;
    EXPECT_TRUE(peer.IsDropped());
  });
  auto client = [&]() -> Task<absl::Status> {
    absl::Status status;
    TaskScope scope(client_runtime_->executor(0));
    scope.Spawn(Call(status));
    (void)co_await has_landing_.Until(true);
    co_await LetPass(kMaxLandingWait - std::chrono::seconds(10));
    EXPECT_EQ(ended_, 0) << "the server still has time: " << status;
    clock_.moved_by = kMaxLandingWait;
    co_await scope.Join();
    co_return status;
  };
  const absl::Status status = Run(client());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("has not answered"), std::string::npos) << status;
  Eventually([this] { return HeldBy(*client_runtime_).bytes == 0; }, "the memory is home");
}

// The landing for its message is all that the server's calls may have of the client's memory, so
// its payload has no place, and no checksum.
TEST_F(HostileServerTest, AFailureWithAPayloadThatFindsNoMemoryIsToldAsLost) {
  StartClient(PayloadChecksum::kOn);
  script_ = std::thread([this] {
    RoguePeer& peer = hostile_.Accept();
    Hostile::AskForLandings(peer, 1);
    const RogueFrame given = peer.Receive()[0];
    EXPECT_EQ(given.header.kind, FrameKind::kLanding);
    absl::StatusOr<RemoteRange> landing = ParseLanding(given.body.data(), given.body.size());
    ASSERT_TRUE(landing.ok()) << landing.status();
    RogueFrame failure = Response(given.header.call_slot, given.header.call_generation);
    failure.header.status_code = static_cast<uint8_t>(absl::StatusCode::kAborted);
    failure.header.outcome = static_cast<uint8_t>(Outcome::kExecuted);
    failure.header.flags = kFrameHasBulk;
    failure.body.resize(ResponseBulk::kEncodedBytes + 7, 'x');
    ResponseBulk{
        .has_payload = true, .payload_bytes = 7, .message_bytes = 16, .payload_in_frame = true}
        .Encode(failure.body.data());
    peer.SendEnding(EncodeSend(kCorrect, {failure}), landing->rkey);
  });
  auto call = [this]() -> Task<absl::Status> {
    WithPayload<testing::GetReply> reply;
    absl::Status status = co_await stub_->Get(testing::GetRequest(), reply);
    EXPECT_FALSE(reply.has_payload);
    co_return status;
  };
  const absl::Status status = Run(call());
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kExecuted);
  EXPECT_NE(status.message().find("has no place here"), std::string::npos) << status;
  Eventually([this] { return HeldBy(*client_runtime_).bytes == 0; }, "the memory is home");
}

TEST_F(HostileServerTest, AServerThatSaysGoAwayOnEachLinkIsConnectedToLessAndLessOften) {
  constexpr int kLinks = 7;
  StartClientOn(standing_);
  script_ = std::thread([this] {
    for (int i = 0; i < kLinks; ++i) {
      Hostile::SayGoAway(hostile_.Accept());
      ++drained_;
    }
  });
  EXPECT_GE(PassedWhile([this] { return Run(channel_->Connect()); }, drained_, kLinks,
                        "said GOAWAY before it answered"),
            LeastOfPauses(kLinks - 1));
  Eventually([this] { return ClientLinks() == 0; }, "idle links close");
}

// The client has sent a PING, which is to show that the link carries anything.
TEST_F(HostileServerTest, AServerThatSaysGoAwayInsteadOfAPongIsShuttingDown) {
  client_runtime_ = StartRuntime({.device = "soft:tcp"});
  channel_ = std::make_unique<Channel>(*client_runtime_, hostile_.listener->address());
  script_ = std::thread([this] {
    RoguePeer peer(*hostile_.runtime, "soft:tcp");
    peer.answers_proof = false;
    peer.AcceptFrom(*hostile_.listener);
    // Before its PING the client has not opened its side.
    EXPECT_EQ(peer.Receive()[0].header.kind, FrameKind::kPing);
    Hostile::SayGoAway(peer);
    EXPECT_TRUE(peer.IsDropped());
  });
  const absl::Status status = Run(channel_->Connect());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("said GOAWAY before it answered a call"), std::string::npos)
      << status;
}

// As a server that crashes on each first call: a thousand clients must not be its next trouble.
TEST_F(HostileServerTest, AServerThatLosesEachLinkIsConnectedToLessAndLessOften) {
  constexpr int kLinks = 8;
  StartClientOn(standing_);
  script_ = std::thread([this] {
    for (int i = 0; i < kLinks; ++i) {
      hostile_.Accept();
      hostile_.peers.pop_back();
      ++lost_;
    }
  });
  // A link may be lost once by chance.
  EXPECT_GE(PassedWhile([this] { return Run(channel_->Connect()); }, lost_, kLinks,
                        "loses each link before it answers a call"),
            LeastOfPauses(kLinks - 2));
}

// A frame that does not answer the call leaves the link useless.
TEST_F(HostileServerTest, AServerThatAnswersWronglyIsConnectedToLessAndLessOften) {
  constexpr int kLinks = 5;
  StartClientOn(standing_);
  script_ = std::thread([this] {
    for (int i = 0; i < kLinks; ++i) {
      RoguePeer& peer = hostile_.Accept();
      const FrameHeader request = peer.Receive()[0].header;
      RogueFrame wrong;
      // The end of a stream for a call that is none, or a response without the bulk it tells of.
      wrong.header.kind = i % 2 == 0 ? FrameKind::kStreamEnd : FrameKind::kResponse;
      if (i % 2 != 0) wrong.header.flags = kFrameHasBulk;
      wrong.header.call_slot = request.call_slot;
      wrong.header.call_generation = request.call_generation;
      peer.Send(EncodeSend(kCorrect, {wrong}));
      EXPECT_TRUE(peer.IsDropped());
      hostile_.peers.pop_back();
      ++lost_;
    }
  });
  EXPECT_GE(PassedWhile([this] { return Run(Call()); }, lost_, kLinks,
                        "loses each link before it answers a call"),
            LeastOfPauses(kLinks - 2));
}

TEST_F(HostileServerTest, AServerThatSaysGoAwayOnEachLinkHasFewOfThem) {
  constexpr int kMore = 2;
  constexpr int kLinks = static_cast<int>(Connection::kMaxDraining) + kMore;
  StartClient();
  script_ = std::thread([this] {
    for (int i = 0; i < kLinks; ++i) {
      RoguePeer& peer = hostile_.Accept();
      (void)peer.Receive();
      Hostile::SayGoAway(peer);
      ++drained_;
    }
  });
  auto client = [&]() -> Task<absl::Status> {
    TaskScope scope(client_runtime_->executor(0));
    co_await CallUntilAllLinksDrain(scope, kLinks);
    const TimePoint limit = Clock::Real().Now() + RoguePeer::kPatience;
    // A link that is closed counts until its teardown has ended, and calls that are left may be
    // connecting one that the script does not accept.
    constexpr size_t kMostLinks = Connection::kMaxDraining + 1;
    static_assert(kMostLinks < kLinks);
    while (Clock::Real().Now() < limit && (closed_ < kMore || ClientLinks() > kMostLinks)) {
      co_await Turn(client_runtime_->executor(0));
    }
    EXPECT_LE(ClientLinks(), kMostLinks);
    stops_ = true;
    scope.RequestCancel();
    co_await scope.Join();
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(client()), absl::OkStatus());
  EXPECT_GE(closed_, kMore);
}

}  // namespace hostile_server_test
}  // namespace verbena::internal
