// Clients that freeze, withhold credits or call too much cost others only a bounded amount.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/rogue_peer.h"
#include "tests/rpc/testing_service.h"
#include "tests/rpc/waiting_replies.h"
#include "verbena/rpc/call/frames.h"

namespace verbena::internal {
namespace slow_client_test {

using std::chrono::hours;
using std::chrono::milliseconds;

class SlowClientTest : public RpcTest {
 protected:
  void Start(ServerOptions options, const LinkLimits& limits) {
    StartServer(std::move(options), {.limits = limits});
    client_runtime_ = StartRuntime();
  }

  std::unique_ptr<RoguePeer> Rogue(const RuntimeId& id = RuntimeId::Random()) {
    auto rogue = std::make_unique<RoguePeer>(*client_runtime_);
    rogue->runtime_id = id;
    rogue->ConnectTo(server_->address());
    return rogue;
  }
};

// Frozen, as by a debugger: its process is there, and its bootstrap connection.
TEST_F(SlowClientTest, AClientThatFallsSilentWhileItOwesCreditsLosesItsLink) {
  LinkLimits limits;
  limits.ping_interval = milliseconds(20);
  Start({.response_grace = hours(1)}, limits);
  std::unique_ptr<RoguePeer> rogue = Rogue();
  rogue->Send(EncodeSend(kCorrect, MoreCallsThanCredits()));
  EXPECT_TRUE(rogue->IsDropped());
}

// The client's own word does not say how long the server keeps a response.
TEST_F(SlowClientTest, AFarDeadlineDoesNotKeepAResponseThatItsClientDoesNotTake) {
  LinkLimits limits;
  limits.ping_interval = hours(1);
  Start({.response_grace = milliseconds(20)}, limits);
  std::unique_ptr<RoguePeer> rogue = Rogue();
  std::vector<RogueFrame> requests = MoreCallsThanCredits();
  for (RogueFrame& request : requests) {
    request.header.set_deadline(
        std::chrono::duration_cast<std::chrono::microseconds>(hours(1000)).count());
  }
  rogue->Send(EncodeSend(kCorrect, requests));
  EXPECT_TRUE(rogue->IsDropped());
}

// The link ends even if the client is lively otherwise.
TEST_F(SlowClientTest, AResponseThatItsClientDoesNotTakeEndsTheLink) {
  for (const Duration deadline : {Duration(), Duration(milliseconds(1))}) {
    LinkLimits limits;
    limits.ping_interval = hours(1);
    Start({.response_grace = milliseconds(20)}, limits);
    std::unique_ptr<RoguePeer> rogue = Rogue();
    std::vector<RogueFrame> requests = MoreCallsThanCredits();
    for (RogueFrame& request : requests) {
      request.header.set_deadline(
          std::chrono::duration_cast<std::chrono::microseconds>(deadline).count());
    }
    rogue->Send(EncodeSend(kCorrect, requests));
    EXPECT_TRUE(rogue->IsDropped());
    EXPECT_EQ(server_->Shutdown(Duration::zero()).size(), 0u);
    rogue.reset();
    server_.reset();
  }
}

// However little each takes, a client may make many calls that the server refuses.
TEST_F(SlowClientTest, RefusalsThatTheirClientDoesNotTakeEndTheLink) {
  constexpr uint32_t kRequests = 1000;
  LinkLimits limits{.max_links = 8,
                    .srq_depth = 256,
                    .eager_bytes = 64 * 1024,
                    .initial_credits = 8,
                    .max_credits = 64,
                    .send_buffers = 64};
  limits.ping_interval = hours(1);
  Start({.response_grace = milliseconds(20)}, limits);
  std::unique_ptr<RoguePeer> rogue = Rogue();
  std::vector<RogueFrame> requests;
  for (uint32_t i = 0; i < kRequests; ++i) {
    requests.push_back(Request("no.such/Method", kMaxCallsInFlight - 1 - i, 0));
  }
  rogue->Send(EncodeSend(kCorrect, requests));
  EXPECT_TRUE(rogue->IsDropped());
  EXPECT_EQ(server_->stats().refused, kRequests);
}

// Its credits say that it receives. Nothing waits for it here: all responses are posted.
TEST_F(SlowClientTest, AClientThatGrantsCreditsWithoutReceivesLosesItsLink) {
  LinkLimits limits;
  limits.ping_interval = hours(1);
  Start({.response_grace = hours(1)}, limits);
  auto rogue = std::make_unique<RoguePeer>(*client_runtime_, RogueDevice(), /*receives=*/false);
  rogue->ConnectTo(server_->address());
  std::vector<RogueFrame> requests = MoreCallsThanCredits();
  requests.pop_back();
  rogue->Send(EncodeSend(kCorrect, requests));
  EXPECT_TRUE(rogue->IsDropped());
}

// Each asks for memory that its reply needs, and never gets it.
TEST_F(SlowClientTest, CallsThatWaitForALandingCountAndEndByTheirDeadlineOrShutdown) {
  LinkLimits limits;
  limits.ping_interval = hours(1);
  Start({.max_calls_per_client = 2}, limits);
  std::unique_ptr<RoguePeer> greedy = Rogue();
  testing::InflateRequest inflate;
  inflate.set_reply_bytes(100'000);
  const auto request = [&](uint32_t slot, Duration deadline) {
    RogueFrame frame =
        Request("verbena.testing.Testing/Inflate", slot, 0, inflate.SerializeAsString());
    frame.header.set_deadline(
        std::chrono::duration_cast<std::chrono::microseconds>(deadline).count());
    return frame;
  };
  std::vector<RogueFrame> got;
  const auto receive = [&](size_t count) {
    got.clear();
    while (got.size() < count && !HasFailure()) {
      for (RogueFrame& frame : greedy->Receive()) {
        if (frame.header.kind != FrameKind::kGoAway) got.push_back(std::move(frame));
      }
    }
    ASSERT_EQ(got.size(), count);
  };
  greedy->Send(EncodeSend(kCorrect, {request(0, Duration()), request(1, Duration())}));
  receive(2);
  EXPECT_EQ(got[0].header.kind, FrameKind::kLandingNeeded);
  EXPECT_EQ(got[1].header.kind, FrameKind::kLandingNeeded);
  greedy->Send(EncodeSend(kCorrect, {request(2, Duration())}));
  receive(1);
  EXPECT_EQ(got[0].header.status_code, static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_NE(got[0].body.find("max_calls_per_client"), std::string::npos) << got[0].body;

  std::unique_ptr<RoguePeer> hurried = Rogue();
  hurried->Send(EncodeSend(kCorrect, {request(0, milliseconds(20))}));
  std::vector<RogueFrame> frames = hurried->Receive();
  if (frames.size() == 1 && frames[0].header.kind == FrameKind::kLandingNeeded) {
    frames = hurried->Receive();
  }
  ASSERT_FALSE(frames.empty());
  EXPECT_EQ(frames.back().header.kind, FrameKind::kResponse);
  EXPECT_EQ(frames.back().header.status_code,
            static_cast<int>(absl::StatusCode::kDeadlineExceeded));

  EXPECT_TRUE(server_->Shutdown(Duration::zero()).empty());
  receive(2);
  for (const RogueFrame& frame : got) {
    EXPECT_EQ(frame.header.kind, FrameKind::kResponse);
    EXPECT_EQ(frame.header.status_code, static_cast<int>(absl::StatusCode::kCancelled));
  }
}

// So max_calls_per_client bounds their bytes, too: a reply that fits a frame takes eager_bytes at
// most, and a larger one counts as its client's response memory.
TEST_F(SlowClientTest, ResponsesThatWaitForRoomCountAsTheirClientsCalls) {
  LinkLimits limits;
  limits.ping_interval = hours(1);
  Start({.max_calls_per_client = 2, .response_grace = hours(1)}, limits);
  std::unique_ptr<RoguePeer> greedy = Rogue();
  // Then the server has taken its Ready, before which every response would wait.
  greedy->Send(EncodeSend(kCorrect, {Request("verbena.testing.Testing/Echo", 0, 0)}));
  ASSERT_EQ(greedy->Receive()[0].header.status_code, 0);
  std::vector<RogueFrame> requests = MoreCallsThanCredits();
  for (RogueFrame& request : requests) ++request.header.call_generation;
  greedy->Send(EncodeSend(kCorrect, requests));
  // The server may have spent another credit on something else: then the last one is refused.
  const auto arrived = [this] { return server_->stats().calls + server_->stats().refused; };
  Eventually([&] { return arrived() == 1 + requests.size(); }, "two responses wait");
  std::unique_ptr<RoguePeer> second = Rogue(greedy->runtime_id);
  second->Send(EncodeSend(kCorrect, {Request("verbena.testing.Testing/Echo", 0, 0)}));
  const RogueFrame refused = second->Receive()[0];
  EXPECT_EQ(refused.header.status_code, static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_NE(refused.body.find("max_calls_per_client"), std::string::npos) << refused.body;
  // A response that goes nowhere counts no longer.
  greedy.reset();
  Eventually([this] { return server_runtime_->endpoint_stats(0).links == 1; }, "its link closes");
  second->Send(EncodeSend(kCorrect, {Request("verbena.testing.Testing/Echo", 1, 0)}));
  EXPECT_EQ(second->Receive()[0].header.status_code, 0);
}

TEST_F(SlowClientTest, OneClientsCallsLeaveRoomForOthers) {
  Start({.max_calls_per_client = 2}, {});
  std::unique_ptr<RoguePeer> greedy = Rogue();
  std::unique_ptr<RoguePeer> modest = Rogue();
  greedy->Send(EncodeSend(kCorrect, {Request("verbena.testing.Testing/Wait", 0, 0),
                                     Request("verbena.testing.Testing/Wait", 1, 0),
                                     Request("verbena.testing.Testing/Echo", 2, 0)}));
  const RogueFrame refused = greedy->Receive()[0];
  EXPECT_EQ(refused.header.call_slot, 2u);
  EXPECT_EQ(refused.header.status_code, static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(refused.header.outcome, static_cast<int>(Outcome::kNotExecuted));
  EXPECT_NE(refused.body.find("max_calls_per_client"), std::string::npos) << refused.body;
  modest->Send(EncodeSend(kCorrect, {Request("verbena.testing.Testing/Echo", 0, 0)}));
  EXPECT_EQ(modest->Receive()[0].header.status_code, 0);
  // All its links count together.
  std::unique_ptr<RoguePeer> second = Rogue(greedy->runtime_id);
  second->Send(EncodeSend(kCorrect, {Request("verbena.testing.Testing/Echo", 0, 0)}));
  EXPECT_EQ(second->Receive()[0].header.status_code,
            static_cast<int>(absl::StatusCode::kResourceExhausted));
  // A call that ends makes room.
  RogueFrame cancel = Request("", 1, 0);
  cancel.header.kind = FrameKind::kCancel;
  cancel.header.method = 0;
  greedy->Send(EncodeSend(kCorrect, {cancel}));
  EXPECT_EQ(greedy->Receive()[0].header.call_slot, 1u);
  greedy->Send(EncodeSend(kCorrect, {Request("verbena.testing.Testing/Echo", 2, 1)}));
  EXPECT_EQ(greedy->Receive()[0].header.status_code, 0);
}

}  // namespace slow_client_test
}  // namespace verbena::internal
