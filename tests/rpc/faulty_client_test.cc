// A client that breaks its word about landings that it was granted harms no other memory of the
// server: it writes late or past the end, uses a landing twice or one that it was not granted, or
// keeps one that the server asks back. On the soft device or the RDMA device that VERBENA_DEVICE
// names.

#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/first_device.h"
#include "tests/rpc/payload_service.h"
#include "tests/rpc/rogue_peer.h"
#include "verbena/rpc/call/bulk_format.h"

namespace verbena::internal {
namespace faulty_client_test {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kBytes = 4096;

std::string Pattern() {
  std::string bytes(kBytes, '\0');
  for (size_t i = 0; i < kBytes; ++i) bytes[i] = PatternAt(i);
  return bytes;
}

struct Granted {
  uint32_t slot = 0;
  RemoteRange range{};
};

class FaultyClientTest : public PayloadFixture {
 protected:
  void Start(const LinkLimits& limits = RoguesLimits(), const ServerOptions& options = {}) {
    peer_.reset();
    StopBoth();
    server_runtime_ = StartRuntime({.device = RogueDevice(), .limits = limits});
    ServeWith(service_, options);
    ASSERT_EQ(server_runtime_->BlockOn(GrowReceiveMemory(*server_runtime_)), absl::OkStatus());
    rogue_runtime_ = *Runtime::Start({.device = RogueDevice()});
    peer_ = std::make_unique<RoguePeer>(*rogue_runtime_, RogueDevice());
    peer_->ConnectTo(server_->address());
  }
  // The server grants no landing while its first memory is being registered.
  static Task<absl::Status> GrowReceiveMemory(Runtime& runtime) {
    co_return (co_await PayloadMemoryOf(runtime)->receive().Allocate(kBytes)).status();
  }
  void TearDown() override {
    peer_.reset();
    Eventually([this] { return HeldBy(*server_runtime_).bytes == 0; }, "the memory is home");
  }
  // Eventually() runs on a client's executor, and there is none but the rogue's.
  template <typename Condition>
  void Eventually(Condition condition, const char* what) {
    const TimePoint limit = Clock::Real().Now() + std::chrono::seconds(20);
    while (!condition()) ASSERT_LT(Clock::Real().Now(), limit) << "never came true: " << what;
  }

  RogueFrame PutFrame(const RequestBulk& bulk) {
    RogueFrame frame;
    frame.header.kind = FrameKind::kRequest;
    frame.header.method = RogueMethods::NumberOf("verbena.testing.Payloads/Put");
    frame.header.call_slot = 0;
    frame.header.call_generation = generation_++;
    frame.header.flags = kFrameHasBulk;
    frame.body.resize(bulk.encoded_bytes());
    bulk.Encode(frame.body.data());
    return frame;
  }
  static RogueFrame ReturnFrame(uint32_t slot) {
    return {.header = {.kind = FrameKind::kReturn, .argument = slot}};
  }
  static std::string Encoded(const RogueFrame& frame) {
    SendHeader header;
    header.credits_issued = RoguePeer::kCredits + 64;
    return EncodeSend(header, {frame});
  }
  void Send(const RogueFrame& frame) { peer_->Send(Encoded(frame)); }
  static RequestBulk InLanding(const Granted& granted, uint64_t bytes = kBytes) {
    return {.has_payload = true, .payload_bytes = bytes, .grant = granted.slot};
  }

  // A payload that the server cannot read, since the rogue serves no READs: the call fails, but
  // was a payload all the same, and a landing follows.
  Granted NextGrant() {
    RequestBulk bulk{.has_payload = true, .payload_bytes = kBytes, .source_count = 1};
    bulk.sources[0] = {.address = 4096, .bytes = kBytes};  // no key for the response to end
    Send(PutFrame(bulk));
    return AwaitGrant();
  }
  Granted AwaitGrant() {
    std::optional<Granted> granted;
    bool answered = false;
    while (!answered || !granted) {
      for (const RogueFrame& frame : peer_->Receive()) {
        if (frame.header.kind == FrameKind::kResponse) {
          answered = true;
          last_status_ = frame.header.status_code;
          continue;
        }
        if (frame.header.kind != FrameKind::kGrant) continue;
        absl::StatusOr<RemoteRange> range = ParseLanding(frame.body.data(), frame.body.size());
        EXPECT_TRUE(range.ok()) << range.status();
        granted = Granted{frame.header.argument, *range};
      }
      if (::testing::Test::HasFailure()) break;
    }
    return granted.value_or(Granted());
  }

  std::unique_ptr<Runtime> rogue_runtime_;
  std::unique_ptr<RoguePeer> peer_;
  uint32_t generation_ = 0;
  uint8_t last_status_ = 0;
};

TEST_F(FaultyClientTest, BytesWrittenToALandingAreThePayload) {
  Start();
  Granted granted = NextGrant();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(peer_->Write(granted.range.address, granted.range.rkey, Pattern()), IBV_WC_SUCCESS);
    peer_->SendEnding(Encoded(PutFrame(InLanding(granted))), granted.range.rkey);
    granted = AwaitGrant();
    EXPECT_EQ(last_status_, 0);
  }
  EXPECT_EQ(service_.puts, 3);
  EXPECT_EQ(service_.wrong, 0);
}

// Holds whether the request invalidates the landing's key (if windows are checked) or the server
// does.
TEST_F(FaultyClientTest, AWriteAfterTheRequestFindsTheLandingClosed) {
  for (const bool invalidates : {true, false}) {
    Start();
    if (invalidates && !peer_->windows_checked()) continue;
    service_.keep = true;
    const Granted granted = NextGrant();
    EXPECT_EQ(peer_->Write(granted.range.address, granted.range.rkey, Pattern()), IBV_WC_SUCCESS);
    const std::string request = Encoded(PutFrame(InLanding(granted)));
    if (invalidates) {
      peer_->SendInvalidating(request, granted.range.rkey);
    } else {
      peer_->Send(request);
    }
    (void)AwaitGrant();
    EXPECT_EQ(last_status_, 0);
    EXPECT_NE(peer_->Write(granted.range.address, granted.range.rkey, std::string(kBytes, 'F')),
              IBV_WC_SUCCESS);
    // rxe tells the writer alone.
    if (peer_->windows_checked()) {
      EXPECT_TRUE(peer_->IsDropped());
    }
    ASSERT_EQ(service_.kept.size(), 1u);
    EXPECT_TRUE(IsPattern(service_.kept[0].view())) << "a late write landed";
    service_.kept.clear();
  }
}

// Whether the request does not parse, or its method takes no payload.
TEST_F(FaultyClientTest, APayloadThatIsOnlyClaimedEarnsNoLanding) {
  Start();
  RequestBulk bulk{.has_payload = true, .payload_bytes = kBytes, .source_count = 1};
  bulk.sources[0] = {.address = 4096, .bytes = kBytes};
  RogueFrame garbled = PutFrame(bulk);
  garbled.body += "\xff";
  RogueFrame unwanted = PutFrame(bulk);
  unwanted.header.method = RogueMethods::NumberOf("verbena.testing.Payloads/Get");
  for (const auto& [request, code] : {std::pair(garbled, absl::StatusCode::kInvalidArgument),
                                      {unwanted, absl::StatusCode::kUnimplemented}}) {
    Send(request);
    const RogueFrame response = peer_->Receive()[0];
    EXPECT_EQ(response.header.kind, FrameKind::kResponse);
    EXPECT_EQ(response.header.status_code, static_cast<int>(code));
    EXPECT_EQ(server_->stats().granted_bytes, 0u);
  }
}

TEST_F(FaultyClientTest, APayloadThatIsNotWhatItsChecksumSaysReachesNoHandler) {
  LinkLimits limits = RoguesLimits();
  limits.payload_checksum = PayloadChecksum::kOn;
  Start(limits);
  const Granted granted = NextGrant();
  EXPECT_EQ(peer_->Write(granted.range.address, granted.range.rkey, Pattern()), IBV_WC_SUCCESS);
  // Which says that the checksum is 0.
  peer_->SendEnding(Encoded(PutFrame(InLanding(granted))), granted.range.rkey);
  (void)AwaitGrant();
  EXPECT_EQ(last_status_, static_cast<int>(absl::StatusCode::kDataLoss));
  EXPECT_EQ(service_.puts, 0);
}

TEST_F(FaultyClientTest, AWritePastTheEndOfALandingEndsTheLink) {
  Start();
  if (!peer_->windows_checked()) GTEST_SKIP() << "the device does not check the range";
  const Granted granted = NextGrant();
  EXPECT_NE(peer_->Write(granted.range.address + 8, granted.range.rkey, Pattern()), IBV_WC_SUCCESS);
  EXPECT_TRUE(peer_->IsDropped());
}

TEST_F(FaultyClientTest, AClaimToALandingThatWasNotGrantedEndsTheLink) {
  const std::vector<std::function<void(const Granted&)>> lies = {
      [&](const Granted& granted) {
        Send(PutFrame(InLanding({.slot = (granted.slot + 1) % kMaxGrantSlots})));
      },
      [&](const Granted&) { Send(PutFrame(InLanding({.slot = kMaxGrantSlots}))); },
      [&](const Granted& granted) { Send(PutFrame(InLanding(granted, kBytes + 1))); },
      [&](const Granted& granted) {
        // Both arrive before the server may have granted anew.
        SendHeader header;
        header.credits_issued = RoguePeer::kCredits + 64;
        RogueFrame again = PutFrame(InLanding(granted));
        again.header.call_slot = 1;
        peer_->Send(EncodeSend(header, {ReturnFrame(granted.slot), again}));
      },
      [&](const Granted& granted) { Send(ReturnFrame((granted.slot + 1) % kMaxGrantSlots)); },
      [&](const Granted&) { Send(ReturnFrame(kMaxGrantSlots)); },
      [&](const Granted& granted) {
        Send(ReturnFrame(granted.slot));
        Send(ReturnFrame(granted.slot));
      },
      [&](const Granted& granted) {
        RequestBulk both = InLanding(granted);
        both.source_count = 1;
        both.sources[0] = {.address = 4096, .bytes = kBytes, .rkey = 1};
        Send(PutFrame(both));
      },
      [&](const Granted& granted) {
        RequestBulk large = InLanding(granted);
        large.message_bytes = 10;
        Send(PutFrame(large));
      },
      [&](const Granted& granted) { Send(PutFrame(InLanding(granted, 0))); },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    Start();
    const Granted granted = NextGrant();
    lies[i](granted);
    EXPECT_TRUE(peer_->IsDropped());
    EXPECT_EQ(service_.puts, 0);
  }
}

// Otherwise a server that is short of memory would wait for the landing for ever.
TEST_F(FaultyClientTest, AClientThatKeepsWhatIsAskedBackLosesItsLinkAfterTheGrace) {
  LinkLimits limits = RoguesLimits();
  limits.memory.receive_bytes = 64 << 10;
  // Twice in each interval the server looks for a grace that is over, or for a silent peer. An
  // honest client is not silent for as long as it may stand still.
  limits.ping_interval = seconds(1);
  limits.leases.grace = milliseconds(300);
  // The honest client's call waits until the teardown of the rogue's link has ended.
  Start(limits, {.memory_wait = seconds(60)});
  (void)NextGrant();
  StartClient({.device = RogueDevice()});
  auto put = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(64 << 10));
    testing::PutReply reply;
    co_return co_await stub_->Put(testing::PutRequest(), reply,
                                  {.request_payload = std::move(buffer)});
  };
  EXPECT_EQ(Run(put()), absl::OkStatus());
  EXPECT_TRUE(peer_->IsDropped());
  stub_.reset();
  channel_.reset();
  client_runtime_.reset();
}

}  // namespace faulty_client_test
}  // namespace verbena::internal
