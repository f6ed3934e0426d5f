// Links whose peers acknowledge nothing leave send buffers of their endpoint to the other links and
// addresses.
//
// The tests make such a peer by a device that takes SENDs and never completes them.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/transport/device/delegating_device.h"
#include "tests/transport/link/links_fixture.h"
#include "tests/transport/link/stream_to.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/send_queue.h"
#include "verbena/transport/link/wire_format.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace send_share_test {

// Queue pairs whose SENDs are never acknowledged.
std::set<uint32_t> silent_qps;
int (*real_post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;

// The longest SEND of this queue pair.
uint32_t measured_qp = 0;
size_t longest_send = 0;

int PostUnlessSilent(ibv_qp* qp, ibv_send_wr* wrs, ibv_send_wr** refused) {
  for (ibv_send_wr* wr = wrs; wr != nullptr && qp->qp_num == measured_qp; wr = wr->next) {
    if (wr->num_sge == 1) longest_send = std::max<size_t>(longest_send, wr->sg_list->length);
  }
  return silent_qps.contains(qp->qp_num) ? 0 : real_post_send(qp, wrs, refused);
}

// Waits for frames of its peer, whose silence is so checked.
class WaitingSink final : public LinkListener {
 public:
  absl::Status OnFrame(Link&, const FrameHeader&, const char*) override { return absl::OkStatus(); }
  void OnLinkDown(Link&, const absl::Status& reason) override { reason_ = reason; }
  bool ExpectsFrames() const override { return true; }

  const absl::Status& reason() const { return reason_; }

 private:
  absl::Status reason_;
};

class SendShareTest : public LinksFixture {
 protected:
  static constexpr uint32_t kBuffers = 256;
  static constexpr uint32_t kFew = 16;
  static constexpr uint32_t kCredits = 64;
  static constexpr uint32_t kLinks = 20;
  static constexpr size_t kBody = 9000;  // not inline
  static constexpr uint32_t kEnough = 1000;

  void Begin(uint32_t send_buffers, Duration servers_interval = LinkLimits().ping_interval) {
    const LinkLimits limits = {.max_links = kLinks,
                               .srq_depth = 2048,
                               .eager_bytes = 16384,
                               .initial_credits = kCredits,
                               .send_buffers = send_buffers};
    LinkLimits servers = limits;
    servers.ping_interval = servers_interval;
    Start(limits, servers);
    // Otherwise silent links close when it takes long to make the others.
    clock().Stop();
    ASSERT_LT(client().supplies().max_inline_bytes(), kBody);
    silent_qps.clear();
    real_post_send = std::exchange(context().ops.post_send, PostUnlessSilent);
  }
  void TearDown() override {
    silent_qps.clear();
    LinksFixture::TearDown();
    context().ops.post_send = real_post_send;
  }

  std::unique_ptr<MessageStream> WrapClientStream(std::unique_ptr<MessageStream> stream) override {
    return std::make_unique<StreamTo>(std::move(stream), source_);
  }

  Link* ConnectTo(const std::string& source, LinkListener& server_listener) {
    source_ = source;
    return Connect(client_listener_, server_listener);
  }
  // One whose peer owes it frames.
  Link* ConnectWaiting() {
    source_ = "rack-7";
    return Connect(waiting_listener_, a_);
  }
  // One whose peer acknowledges nothing, with as many SENDs under way as it may have.
  Link* ConnectSilent(const std::string& source, uint32_t frames = kEnough) {
    Link* link = ConnectTo(source, silent_listener_);
    if (link == nullptr) return nullptr;
    silent_qps.insert(link->qpn());
    floods_.push_back(std::make_unique<Flood>(frames, kBody));
    floods_.back()->Run(*link);
    for (int turn = 0; turn < 10; ++turn) executor().Poll();
    return link;
  }
  // By all links to the servers.
  size_t held() {
    const SendBuffers& buffers = client().supplies().buffers();
    return buffers.count() - buffers.free_count();
  }
  // The SENDs of each ConnectSilent().
  const std::vector<std::unique_ptr<Flood>>& floods() const { return floods_; }

  // Whether `count` frames arrive over `link`.
  bool Delivers(Link& link, const Receiver& receiver, uint32_t count) {
    Flood flood(count, kBody);
    flood.Run(link);
    for (int turn = 0; turn < 100000 && receiver.received() < count; ++turn) executor().Poll();
    return receiver.received() == count;
  }

  Receiver client_listener_;
  WaitingSink waiting_listener_;
  Receiver silent_listener_;
  Receiver a_;
  Receiver b_;

 private:
  std::string source_;
  std::vector<std::unique_ptr<Flood>> floods_;
};

TEST_F(SendShareTest, LinksWhosePeersAcknowledgeNothingLeaveBuffersToTheNextOne) {
  Begin(kBuffers);
  for (int i = 0; i < 16; ++i) ASSERT_NE(ConnectSilent("rack-7"), nullptr);
  Link* next = ConnectTo("rack-7", a_);
  ASSERT_NE(next, nullptr);
  EXPECT_TRUE(Delivers(*next, a_, 200));
}

// Otherwise it would count against its address as long as that has other links.
TEST_F(SendShareTest, AFrameThatALostLinkDropsIsHeldNoLonger) {
  Begin(kBuffers);
  Link* link = ConnectTo("rack-7", a_);
  ASSERT_NE(link, nullptr);
  ASSERT_NE(link->Append({}, kBody), nullptr);
  EXPECT_EQ(link->source().held, 1u);
  link->Close(absl::CancelledError("the test closes it"));
  EXPECT_EQ(link->source().held, 0u);
  EXPECT_EQ(held(), 0u);
}

// Though all of the others hold what they may.
TEST_F(SendShareTest, EachLinkFindsItsFirstBuffer) {
  Begin(kBuffers);
  for (uint32_t i = 0; i < kLinks; ++i) ASSERT_NE(ConnectSilent("rack-7"), nullptr);
  for (const std::unique_ptr<Flood>& flood : floods()) EXPECT_GT(flood->sent(), 0u);
}

TEST_F(SendShareTest, ALinkAloneFillsItsSendQueue) {
  Begin(kBuffers);
  Link* link = ConnectSilent("rack-7");
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(held(), LinkLimits{}.send_queue_depth);
}

TEST_F(SendShareTest, LinksToOneAddressLeaveHalfOfTheBuffersToOthers) {
  Begin(kBuffers);
  Link* other = ConnectTo("rack-8", a_);
  ASSERT_NE(other, nullptr);
  for (int i = 0; i < 16; ++i) ASSERT_NE(ConnectSilent("rack-7"), nullptr);
  EXPECT_LE(held(), kBuffers / 2);
  EXPECT_TRUE(Delivers(*other, a_, 200));
}

TEST_F(SendShareTest, LinksToTheOnlyAddressMayHoldMoreThanHalf) {
  Begin(kBuffers);
  for (int i = 0; i < 16; ++i) ASSERT_NE(ConnectSilent("rack-7"), nullptr);
  EXPECT_GT(held(), kBuffers / 2);
}

// The waiting link holds no buffer, so no completion of its own would wake it.
TEST_F(SendShareTest, ALinkToAFullAddressIsWokenByAnotherLinkToIt) {
  Begin(kFew);
  ASSERT_NE(ConnectTo("rack-8", a_), nullptr);
  Link* ends = ConnectSilent("rack-7", 1);
  ASSERT_NE(ends, nullptr);
  for (uint32_t i = 1; i < kFew / 2; ++i) ASSERT_NE(ConnectSilent("rack-7", 1), nullptr);
  Link* waiting = ConnectTo("rack-7", b_);
  ASSERT_NE(waiting, nullptr);
  Flood flood(20, kBody);
  flood.Run(*waiting);
  EXPECT_EQ(flood.sent(), 0u);
  EXPECT_EQ(held(), kFew / 2);
  silent_qps.clear();
  ends->Close(absl::CancelledError("the test ends it"));
  PollUntil([&] { return b_.received() == 20; });
}

// Each holds as much as it leaves free: 8, 4 and 2 of 16.
TEST_F(SendShareTest, ThreeFullAddressesLeaveBuffersToAFourth) {
  Begin(kFew);
  Link* fourth = ConnectTo("rack-4", a_);
  ASSERT_NE(fourth, nullptr);
  for (const char* source : {"rack-1", "rack-2", "rack-3"}) {
    const size_t left = kFew - held();
    for (size_t i = 0; i < left / 2; ++i) ASSERT_NE(ConnectSilent(source, 1), nullptr);
    EXPECT_EQ(held(), kFew - left / 2);
    ASSERT_NE(ConnectSilent(source, 1), nullptr);
    EXPECT_EQ(floods().back()->sent(), 0u);
  }
  EXPECT_TRUE(Delivers(*fourth, a_, 20));
}

// A buffer that another address gives back is as good as one of its own.
TEST_F(SendShareTest, ALinkToAFullAddressIsWokenByALinkToAnother) {
  Begin(kFew);
  ASSERT_NE(ConnectSilent("rack-8", 1), nullptr);
  Link* elsewhere = ConnectSilent("rack-8", 1);
  ASSERT_NE(elsewhere, nullptr);
  for (uint32_t i = 0; i < kFew / 2 - 1; ++i) ASSERT_NE(ConnectSilent("rack-7", 1), nullptr);
  Link* waiting = ConnectTo("rack-7", b_);
  ASSERT_NE(waiting, nullptr);
  Flood flood(20, kBody);
  flood.Run(*waiting);
  EXPECT_EQ(flood.sent(), 0u);
  silent_qps.erase(elsewhere->qpn());
  elsewhere->Close(absl::CancelledError("the test ends it"));
  const uint64_t lost = client().stats().links_lost;
  EXPECT_TRUE(DoneInTime([&] { return b_.received() == 20; }));
  EXPECT_EQ(client().stats().links_lost, lost) << "its own address gave some back";
}

TEST_F(SendShareTest, ALinkWhoseAddressIsLeftAloneMayHoldMore) {
  Begin(kFew);
  Link* elsewhere = ConnectTo("rack-8", a_);
  ASSERT_NE(elsewhere, nullptr);
  for (uint32_t i = 0; i < kFew / 2; ++i) ASSERT_NE(ConnectSilent("rack-7", 1), nullptr);
  Link* waiting = ConnectTo("rack-7", b_);
  ASSERT_NE(waiting, nullptr);
  Flood flood(20, kBody);
  flood.Run(*waiting);
  EXPECT_EQ(flood.sent(), 0u);
  elsewhere->Close(absl::CancelledError("the test ends it"));
  PollUntil([&] { return b_.received() == 20; });
}

// The server's SENDs of one frame each, which nobody acknowledges, take all of its buffers.
class AllBuffersTakenTest : public SendShareTest {
 protected:
  static constexpr uint32_t kFrames = 1000;

  void TakeAll() {
    Begin(kFew);
    for (uint32_t i = 0; i < kFew; ++i) {
      ASSERT_NE(ConnectTo("rack-7", silent_listener_), nullptr);
      silent_.push_back(**accepted());
      silent_qps.insert(silent_.back()->qpn());
      Flood(1, kBody).Run(*silent_.back());
    }
    ASSERT_EQ(server().supplies().buffers().free_count(), 0u);
    link_ = ConnectTo("rack-7", a_);
    ASSERT_NE(link_, nullptr);
  }

  std::vector<Link*> silent_;
  Link* link_ = nullptr;
};

TEST_F(AllBuffersTakenTest, CreditsAreReturnedInASpareBuffer) {
  TakeAll();
  Flood flood(kFrames, kBody);
  flood.Run(*link_);
  for (int turn = 0; turn < 100000 && a_.received() < kFrames; ++turn) executor().Poll();
  EXPECT_EQ(a_.received(), kFrames);
  EXPECT_EQ(server().supplies().buffers().free_count(), 0u);
}

TEST_F(AllBuffersTakenTest, APingIsAnsweredAheadOfFramesThatWaitForABuffer) {
  TakeAll();
  Link* answering = **accepted();
  Flood waits(1, kBody);
  waits.Run(*answering);
  ASSERT_EQ(waits.sent(), 0u);
  const uint64_t frames = link_->stats().frames_received;
  client_listener_.set_expects_frames();
  // A link is watched once it has sent something.
  Flood(1, 16).Run(*link_);
  PollUntil([&] { return a_.received() == 1; });
  for (int second = 0; second < 5; ++second) {
    clock().Advance(LinkLimits{}.ping_interval / 2);
    for (int turn = 0; turn < 10; ++turn) executor().Poll();
  }
  EXPECT_GT(link_->stats().frames_received, frames) << "no PONG came";
  EXPECT_EQ(server().supplies().buffers().free_count(), 0u);
  EXPECT_EQ(waits.sent(), 0u);
}

// The lengths of the PONGs that come.
class Pongs final : public PongWaiter {
 public:
  void OnPong(uint32_t padding) override { lengths_.push_back(padding); }
  void OnLinkLost(const absl::Status&) override {}

  const std::vector<uint32_t>& lengths() const { return lengths_; }

 private:
  std::vector<uint32_t> lengths_;
};

TEST_F(AllBuffersTakenTest, AShortPingIsAnsweredWhileALongPongWaitsForABuffer) {
  TakeAll();
  Link* answering = **accepted();
  Pongs pongs;
  link_->AwaitPongs(pongs);
  const uint64_t frames = answering->stats().frames_received;
  link_->Ping(kBody);
  PollUntil([&] { return answering->stats().frames_received == frames + 1; });
  for (int turn = 0; turn < 10; ++turn) executor().Poll();
  ASSERT_TRUE(pongs.lengths().empty());
  link_->Ping();
  EXPECT_TRUE(DoneInTime([&] { return !pongs.lengths().empty(); }));
  EXPECT_EQ(server().supplies().buffers().free_count(), 0u);
  silent_qps.clear();
  silent_[0]->Close(absl::CancelledError("the test ends it"));
  EXPECT_TRUE(DoneInTime([&] { return pongs.lengths().size() == 2; }));
  EXPECT_EQ(pongs.lengths(), (std::vector<uint32_t>{0, kBody}));
}

// A peer that sends many PINGs at once must not fill a spare buffer with the answers: that would be
// lent to the device, and the others would have none.
TEST_F(AllBuffersTakenTest, ASpareBufferTakesNoMoreFramesThanTravelInline) {
  TakeAll();
  Link* answering = **accepted();
  // Control frames then pass it after each SEND that comes.
  Flood waits(1, kBody);
  waits.Run(*answering);
  longest_send = 0;
  measured_qp = answering->qpn();
  Pongs pongs;
  link_->AwaitPongs(pongs);
  constexpr uint32_t kPings = 6;
  for (uint32_t i = 0; i < kPings; ++i) {
    ASSERT_NE(link_->Append(PingFrame(), 0), nullptr);
    // Each of these leaves no room for the next one in the same SEND.
    Flood(i + 1, kBody, i).Run(*link_);
  }
  PollUntil([&] { return a_.received() == kPings && !pongs.lengths().empty(); });
  measured_qp = 0;
  EXPECT_LE(longest_send, sizeof(SendHeader) + ControlFrames::kKinds * FrameBytes(0));
}

class WithoutInlineTest : public AllBuffersTakenTest {
 protected:
  std::unique_ptr<Device> Wrap(SoftDevice& device) override {
    auto wrapper = std::make_unique<DelegatingDevice>(device);
    wrapper->can.max_inline_bytes = 0;
    return wrapper;
  }
};

TEST_F(WithoutInlineTest, APeerIsNotBlamedForAPingThatFoundNoBuffer) {
  Begin(kFew);
  Link* link = ConnectWaiting();
  ASSERT_NE(link, nullptr);
  ASSERT_TRUE(Delivers(*link, a_, 1));
  for (uint32_t i = 0; i < kFew; ++i) ASSERT_NE(ConnectSilent("rack-7", 1), nullptr);
  ASSERT_EQ(held(), kFew);
  // Before the peers of the others are blamed, which are silent.
  for (uint32_t second = 0; second < kMaxUnacknowledgedChecks; ++second) {
    clock().Advance(std::chrono::seconds(1));
    for (int turn = 0; turn < 10; ++turn) executor().Poll();
  }
  EXPECT_EQ(waiting_listener_.reason(), absl::OkStatus());
}

// A PING needs a credit first, and no other link has taken that.
TEST_F(WithoutInlineTest, ASilentPeerIsFoundDeadThoughItLeftNoCreditForAPing) {
  Begin(kBuffers, std::chrono::hours(1));
  Link* link = ConnectWaiting();
  ASSERT_NE(link, nullptr);
  silent_qps.insert((**accepted())->qpn());
  Flood flood(2 * kCredits, kBody);
  flood.Run(*link);
  PollUntil([&] { return a_.received() == kCredits; });
  ASSERT_GT(link->stats().credit_waits, 0u);
  for (uint32_t check = 0; check < kMaxSilentChecks + 4; ++check) {
    clock().Advance(LinkLimits{}.ping_interval / 2);
    for (int turn = 0; turn < 10; ++turn) executor().Poll();
  }
  EXPECT_NE(waiting_listener_.reason().message().find("has not answered a PING"), std::string::npos)
      << waiting_listener_.reason();
}

// Nothing else that happens on the link would return them: its peer waits for credits.
TEST_F(WithoutInlineTest, CreditsThatFoundNoBufferAreReturnedOnceOneIsFree) {
  TakeAll();
  Flood flood(kFrames, kBody);
  flood.Run(*link_);
  for (int turn = 0; turn < 1000; ++turn) executor().Poll();
  ASSERT_LT(a_.received(), kFrames) << "more than it had credits for";
  silent_qps.clear();
  silent_[0]->Close(absl::CancelledError("the test ends it"));
  EXPECT_TRUE(DoneInTime([&] { return a_.received() == kFrames; }));
}

}  // namespace send_share_test
}  // namespace verbena::internal
