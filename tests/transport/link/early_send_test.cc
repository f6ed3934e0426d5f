// Frames leave while their turn goes on, so that the peer works on them meanwhile, and are neither
// lost nor reordered.
//
// A test's own code is no turn: what has left before the next Poll() has not waited for a turn's
// end. Doorbells are counted by the links.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/payload_memory.h"
#include "verbena/transport/link/stats.h"
#include "verbena/transport/link/transfers.h"

namespace verbena::internal {
namespace early_send_test {

constexpr uint32_t kInitialCredits = 32;

// Answers each frame, and records how many doorbells its link had rung by then.
class Answerer final : public LinkListener {
 public:
  absl::Status OnFrame(Link& link, const FrameHeader& frame, const char* body) override {
    const uint64_t before = link.stats().doorbells;
    FrameHeader answer;
    answer.kind = FrameKind::kResponse;
    answer.call_generation = frame.call_generation;
    char* to = link.Append(answer, frame.body_bytes);
    if (to == nullptr) return absl::ResourceExhaustedError("no room for an answer");
    std::memcpy(to, body, frame.body_bytes);
    doorbells_.push_back(link.stats().doorbells);
    if (link.stats().doorbells == before) return absl::OkStatus();
    // Each credit that has left has a receive behind it.
    const EndpointStats endpoint = link.endpoint().stats();
    EXPECT_GE(endpoint.receives_posted, kInitialCredits + endpoint.credits_borrowed);
    return absl::OkStatus();
  }
  void OnLinkDown(Link&, const absl::Status&) override {}
  bool ExpectsFrames() const override { return false; }

  // At each answer, the answer's own SEND not included.
  const std::vector<uint64_t>& doorbells() const { return doorbells_; }

 private:
  std::vector<uint64_t> doorbells_;
};

// Looks at another link whenever a frame comes.
class Onlooker final : public LinkListener {
 public:
  absl::Status OnFrame(Link&, const FrameHeader&, const char*) override {
    if (watched_ != nullptr) doorbells_ = watched_->stats().doorbells;
    came_ = true;
    return absl::OkStatus();
  }
  void OnLinkDown(Link&, const absl::Status&) override {}
  bool ExpectsFrames() const override { return false; }

  void LookAt(const Link& link) { watched_ = &link; }
  bool came() const { return came_; }
  uint64_t doorbells() const { return doorbells_; }

 private:
  const Link* watched_ = nullptr;
  bool came_ = false;
  uint64_t doorbells_ = 0;
};

// A side with calls in flight.
class Caller final : public LinkListener {
 public:
  explicit Caller(uint32_t calls) : calls_(calls) {}

  absl::Status OnFrame(Link&, const FrameHeader&, const char*) override {
    ++answers_;
    return absl::OkStatus();
  }
  void OnLinkDown(Link&, const absl::Status&) override {}
  bool ExpectsFrames() const override { return false; }
  uint32_t calls_in_flight() const override { return calls_; }

  uint32_t answers() const { return answers_; }

 private:
  const uint32_t calls_;
  uint32_t answers_ = 0;
};

// Appends frames as soon as its transfer is in the send queue, and counts the doorbells meanwhile.
class Appender final : public TransferListener {
 public:
  Appender(Link& link, uint32_t frames) : link_(link), flood_(frames, 8) {}

  void OnTransferPosted() override {
    const uint64_t before = link_.stats().doorbells;
    flood_.Run(link_);
    posted_ = true;
    doorbells_ = link_.stats().doorbells - before;
  }
  void OnTransferDone(const absl::Status& status) override {
    EXPECT_TRUE(status.ok()) << status;
    done_ = true;
  }

  bool posted() const { return posted_; }
  bool done() const { return done_; }
  uint64_t doorbells() const { return doorbells_; }

 private:
  Link& link_;
  Flood flood_;
  bool posted_ = false;
  bool done_ = false;
  uint64_t doorbells_ = 0;
};

class EarlySendTest : public LinksFixture {
 protected:
  void SetUp() override {
    LinkLimits limits;
    limits.initial_credits = kInitialCredits;
    Start(limits, limits);
  }

  // Connected, and with nothing left to do.
  Link* Connected(LinkListener& client_listener, LinkListener& server_listener) {
    Link* link = Connect(client_listener, server_listener);
    PollUntil([this] { return !executor().Poll(); });
    return link;
  }

  // A block of the server's that the client may write, and one of the client's to write it from.
  void LeaseBlock() {
    target_ = *server().memory().receive().TryAllocate(4096);
    source_ = *client().memory().send().TryAllocate(4096);
    absl::StatusOr<Lease*> lease = (**accepted())->OpenLease(target_.view(), LeaseAccess::kWrite);
    ASSERT_TRUE(lease.ok() && *lease != nullptr) << lease.status();
    lease_ = *lease;
    PollUntil([this] { return !executor().Poll(); });
    std::memset(target_.data(), 0, 4096);
    std::memset(source_.data(), 7, 4096);
  }
  void WriteBlock(Link& link, TransferListener* listener) {
    const BufferView view = source_.view();
    link.StartTransfer(Transfer::Direction::kWrite, {&view, 1}, lease_->terms(), listener);
  }
  bool block_written() const { return target_.data()[4095] == 7; }
  void TakeBlockBack() {
    (**accepted())->EndLease(*lease_, nullptr);
    PollUntil([&] { return server().leases() == 0; });
  }

  Receiver client_listener_;
  Receiver other_client_listener_;
  Receiver server_listener_;
  Caller caller_{8};
  Answerer answerer_;
  Onlooker onlooker_;

 private:
  Buffer target_;
  Buffer source_;
  Lease* lease_ = nullptr;
};

TEST_F(EarlySendTest, RequestsLeaveWhileTheirTurnGoesOn) {
  Link* link = Connected(client_listener_, server_listener_);
  ASSERT_NE(link, nullptr);
  const LinkStats before = link->stats();
  Flood flood(kMaxEarlyFrames, 8);
  flood.Run(*link);
  EXPECT_EQ(link->stats().doorbells, before.doorbells) << "the last one's body may be unwritten";
  FrameHeader next;
  next.call_generation = kMaxEarlyFrames;
  std::memset(link->Append(next, 8), kMaxEarlyFrames, 8);
  EXPECT_EQ(link->stats().doorbells, before.doorbells + 1);
  PollUntil([&] { return server_listener_.received() == kMaxEarlyFrames + 1; });
  EXPECT_EQ(link->stats().sends, before.sends + 2);
}

TEST_F(EarlySendTest, AnswersLeaveWhileRequestsAreStillHandled) {
  Link* link = Connected(client_listener_, answerer_);
  ASSERT_NE(link, nullptr);
  constexpr uint32_t kRequests = 4 * kMaxEarlyFrames;
  Flood flood(kRequests, 8);
  flood.Run(*link);
  PollUntil([&] { return client_listener_.received() == kRequests; });
  const std::vector<uint64_t>& doorbells = answerer_.doorbells();
  ASSERT_EQ(doorbells.size(), kRequests);
  EXPECT_EQ(doorbells[kMaxEarlyFrames - 1], doorbells[0]);
  EXPECT_EQ(doorbells[kMaxEarlyFrames], doorbells[0] + 1);
  EXPECT_EQ(doorbells[3 * kMaxEarlyFrames], doorbells[0] + 3);
}

TEST_F(EarlySendTest, AnswersLeaveBeforeTheNextCompletionIsHandled) {
  Link* first = Connected(client_listener_, answerer_);
  ASSERT_NE(first, nullptr);
  Link& answering = ***accepted();
  Link* second = Connected(other_client_listener_, onlooker_);
  ASSERT_NE(second, nullptr);
  onlooker_.LookAt(answering);
  const uint64_t before = answering.stats().doorbells;
  Flood flood(kMaxEarlyFrames, 8);
  flood.Run(*first);
  Flood one(1, 8);
  one.Run(*second);
  PollUntil([&] { return onlooker_.came(); });
  EXPECT_EQ(onlooker_.doorbells(), before + 1);
}

TEST_F(EarlySendTest, FewerCallsInFlightLeaveInSmallerGroups) {
  Link* link = Connected(caller_, answerer_);
  ASSERT_NE(link, nullptr);
  Flood first(1, 8);
  first.Run(*link);
  PollUntil([&] { return caller_.answers() == 1; });
  PollUntil([this] { return !executor().Poll(); });
  const uint64_t before = link->stats().doorbells;
  Flood flood(8, 8);
  flood.Run(*link);
  EXPECT_EQ(link->stats().doorbells, before + 1) << "half of them";
  PollUntil([&] { return caller_.answers() == 9; });
}

TEST_F(EarlySendTest, NoFramesLeaveEarlyWhileATransferWaits) {
  Link* link = Connected(client_listener_, server_listener_);
  ASSERT_NE(link, nullptr);
  LeaseBlock();
  const uint64_t before = link->stats().doorbells;
  WriteBlock(*link, nullptr);
  Flood flood(3 * kMaxEarlyFrames, 8);
  flood.Run(*link);
  EXPECT_EQ(link->stats().doorbells, before);
  PollUntil([&] { return server_listener_.received() == 3 * kMaxEarlyFrames && block_written(); });
  TakeBlockBack();
}

// A flush has given the WRITE its positions when its listener is told, but has not posted it.
TEST_F(EarlySendTest, FramesAppendedInsideAFlushDoNotOvertakeItsTransfer) {
  Link* link = Connected(client_listener_, server_listener_);
  ASSERT_NE(link, nullptr);
  LeaseBlock();
  Appender appender(*link, 3 * kMaxEarlyFrames);
  WriteBlock(*link, &appender);
  PollUntil([&] { return server_listener_.received() > 0; });
  EXPECT_TRUE(appender.posted());
  EXPECT_EQ(appender.doorbells(), 0u) << "SENDs left ahead of the WRITE";
  EXPECT_TRUE(block_written());
  PollUntil([&] { return server_listener_.received() == 3 * kMaxEarlyFrames && appender.done(); });
  TakeBlockBack();
}

// Many frames, many turns, both ways: nothing is lost or reordered, and no credit is missing.
TEST_F(EarlySendTest, NothingIsLostOrReordered) {
  Link* link = Connected(client_listener_, server_listener_);
  ASSERT_NE(link, nullptr);
  Flood there(20000, 40);
  Flood back(20000, 700);
  there.Run(*link);
  back.Run(***accepted());
  PollUntil(
      [&] { return client_listener_.received() == 20000 && server_listener_.received() == 20000; });
}

}  // namespace early_send_test
}  // namespace verbena::internal
