// On a device without shared receive queues each link has its own: all of its receives are there
// from its beginning, credits never run ahead of them, each buffer comes back when the link ends,
// and what all links have together is fixed.

#include "verbena/transport/link/receives.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "tests/transport/device/raising_device.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/executor/completion_listener.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/wire_format.h"
#include "verbena/transport/soft/options.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace link_receives_test {

using ::testing::HasSubstr;

// The header of each SEND of queue pair `inflated_qpn` claims that many credits.
uint32_t inflated_qpn = 0;
constexpr uint32_t kInflated = 1000;
int (*real_post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;

int PostInflated(ibv_qp* qp, ibv_send_wr* wrs, ibv_send_wr** refused) {
  for (ibv_send_wr* wr = wrs; wr != nullptr && qp->qp_num == inflated_qpn; wr = wr->next) {
    if (wr->opcode != IBV_WR_SEND || wr->num_sge == 0) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    char* bytes = reinterpret_cast<char*>(wr->sg_list[0].addr);
    SendHeader header;
    std::memcpy(&header, bytes, sizeof(header));
    if (header.is_compact()) continue;
    header.credits_issued = kInflated;
    std::memcpy(bytes, &header, sizeof(header));
  }
  return real_post_send(qp, wrs, refused);
}

// Keeps the completions of flushed receives to itself, as a device does that drops them together
// with their queue pair.
int (*real_poll_cq)(ibv_cq*, int, ibv_wc*) = nullptr;

int PollWithoutFlushes(ibv_cq* cq, int room, ibv_wc* completions) {
  const int count = real_poll_cq(cq, room, completions);
  int kept = 0;
  for (int i = 0; i < count; ++i) {
    const bool receive = WrId::Unpack(completions[i].wr_id).kind == WrId::Kind::kLinkReceive;
    if (receive && completions[i].status != IBV_WC_SUCCESS) continue;
    completions[kept++] = completions[i];
  }
  return kept;
}

// Counts the bytes that are registered.
class CountingDevice final : public RaisingDevice {
 public:
  using RaisingDevice::RaisingDevice;
  absl::StatusOr<ibv_mr*> RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    registered += bytes;
    return RaisingDevice::RegMr(pd, address, bytes, access);
  }
  size_t registered = 0;
};

class LinkReceivesTest : public LinksFixture {
 protected:
  static constexpr uint32_t kLinks = 12;
  static constexpr uint32_t kDepth = 32;

  void SetUp() override {
    LinkLimits limits;
    limits.max_links = kLinks;
    limits.eager_bytes = 1024;
    limits.receives_per_link = kDepth;
    Start(limits, limits);
    real_post_send = std::exchange(context().ops.post_send, PostInflated);
    real_poll_cq = context().ops.poll_cq;
  }
  void TearDown() override {
    inflated_qpn = 0;
    LinksFixture::TearDown();
    context().ops.post_send = real_post_send;
    context().ops.poll_cq = real_poll_cq;
  }
  SoftDeviceOptions device_options() const override {
    SoftProfile profile;
    profile.srq = false;
    return {.profile = profile};
  }
  std::unique_ptr<Device> Wrap(SoftDevice& device) override {
    auto counting = std::make_unique<CountingDevice>(device);
    counting_ = counting.get();
    return counting;
  }

  uint32_t server_posted() { return server().stats().receives_posted; }
  void CloseAndWait(Link* link) {
    link->Close(absl::CancelledError("the test ends it"));
    WaitUntilNoLinks();
  }

  CountingDevice* counting_ = nullptr;
  Receiver client_listener_;
  Receiver others_listener_;
  Receiver a_;
  Receiver b_;
};

TEST_F(LinkReceivesTest, EachLinkHasAllOfItsReceivesFromItsBeginning) {
  EXPECT_EQ(server_posted(), 0u);
  for (uint32_t links = 1; links <= kLinks; ++links) {
    Link* link = Connect(client_listener_, a_);
    ASSERT_NE(link, nullptr);
    EXPECT_EQ(link->send_credits(), WindowOf(kDepth));
    EXPECT_EQ(server_posted(), links * kDepth);
    EXPECT_EQ(client().stats().receives_posted, links * kDepth);
  }
}

TEST_F(LinkReceivesTest, ReceivesNeverFallBelowTheCreditsOfThePeerAndItsReserve) {
  Link* link = Connect(client_listener_, a_);
  Link* other = Connect(client_listener_, b_);
  ASSERT_NE(link, nullptr);
  ASSERT_NE(other, nullptr);
  Flood flood(3000, 900);
  flood.Run(*link);
  PollUntil([&] { return a_.received() == 3000 || !a_.reason().ok(); },
            [&] {
              // The quiet link keeps its own.
              const uint32_t posted = server_posted() - kDepth;
              const uint64_t under_way =
                  client().stats().traffic.sends - server().stats().traffic.receives;
              ASSERT_GE(posted, link->send_credits() + under_way + kReserveCredits);
            });
  EXPECT_EQ(a_.received(), 3000u) << a_.reason();
}

TEST_F(LinkReceivesTest, EachReceiveIsUsedAgainAndAgain) {
  Link* link = Connect(client_listener_, a_);
  ASSERT_NE(link, nullptr);
  Flood flood(100 * kDepth, 900);
  flood.Run(*link);
  PollUntil([&] { return a_.received() == 100 * kDepth || !client_listener_.reason().ok(); });
  EXPECT_EQ(a_.received(), 100 * kDepth) << client_listener_.reason();
  EXPECT_GT(server_posted(), kDepth - RepostBatchOf(kDepth));
}

TEST_F(LinkReceivesTest, TwoEndsThatBothStarveIssueEachOtherCredits) {
  Link* link = Connect(client_listener_, a_);
  ASSERT_NE(link, nullptr);
  Flood there(3000, 900), back(3000, 900);
  there.Run(*link);
  back.Run(***accepted());
  PollUntil([&] { return a_.received() == 3000 && client_listener_.received() == 3000; });
  EXPECT_GT(link->stats().credit_waits, 0u);
  EXPECT_EQ(server().stats().traffic.recalls, 0u) << "nothing is borrowed";
}

TEST_F(LinkReceivesTest, EachBufferComesBackWhenItsLinkEnds) {
  for (uint32_t round = 0; round < 3 * kLinks; ++round) {
    a_ = Receiver();
    Link* link = Connect(client_listener_, a_);
    ASSERT_NE(link, nullptr);
    ASSERT_EQ(server_posted(), kDepth);
    Flood flood(~uint32_t{0}, 900);
    flood.Run(*link);
    PollUntil([&] { return a_.received() > 3 * kDepth; });
    CloseAndWait(link);
    EXPECT_EQ(server_posted(), 0u);
    EXPECT_EQ(client().stats().receives_posted, 0u);
  }
  EXPECT_EQ(server().stats().receives_lost, 0u);
}

// No SEND is under way, and no time passes in which a PING could find out.
TEST_F(LinkReceivesTest, AFlushedReceiveEndsTheLinkOfAQueuePairThatFailed) {
  Link* link = Connect(client_listener_, a_);
  ASSERT_NE(link, nullptr);
  PollUntil([&] { return !executor().Poll(); });
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  ASSERT_TRUE(device().ModifyQp(link->qp().get(), attributes, IBV_QP_STATE).ok());
  EXPECT_TRUE(DoneInTime([&] { return !link->open(); }));
  EXPECT_THAT(std::string(client_listener_.reason().message()),
              HasSubstr("the device here ended the connection"));
  WaitUntilNoLinks();
}

TEST_F(LinkReceivesTest, ReceivesThatADeviceDropsWithAQueuePairAreFreeAgain) {
  context().ops.poll_cq = PollWithoutFlushes;
  for (uint32_t round = 0; round < 2 * kLinks; ++round) {
    a_ = Receiver();
    Link* link = Connect(client_listener_, a_);
    ASSERT_NE(link, nullptr);
    ASSERT_EQ(server_posted(), kDepth);
    Flood flood(3 * kDepth, 900);
    flood.Run(*link);
    PollUntil([&] { return a_.received() == 3 * kDepth; });
    CloseAndWait(link);
    EXPECT_EQ(server_posted(), 0u);
  }
  EXPECT_GT(server().stats().receives_lost, 2 * kLinks * (kDepth - RepostBatchOf(kDepth)));
}

// As the completion queue would: Endpoint hands this out to its executor alone.
void Deliver(Endpoint& endpoint, const WrId& id) {
  ibv_wc completion = {};
  completion.wr_id = id.Pack();
  completion.status = IBV_WC_SUCCESS;
  completion.opcode = IBV_WC_RECV;
  auto& listener =
      (CompletionListener&)endpoint;  // NOLINT: a private base, which only this cast reaches
  listener.OnCompletions(&completion, 1);
}

// The completions are made by hand: no device is known to deliver one this late.
TEST_F(LinkReceivesTest, AReceiveOfTheSlotsEarlierLinkIsNotTheLaterLinks) {
  Link* link = Connect(client_listener_, a_);
  ASSERT_NE(link, nullptr);
  const LinkKey earlier = (**accepted())->key();
  uint32_t links = 1;
  LinkKey later = earlier;
  do {
    CloseAndWait(link);
    a_ = Receiver();
    link = Connect(client_listener_, a_);
    ASSERT_NE(link, nullptr);
    later = (**accepted())->key();
    ASSERT_LE(++links, kLinks + 1);
  } while (later.slot != earlier.slot);
  ASSERT_NE(later.generation, earlier.generation);
  const uint64_t before = server().stats().stale_completions;
  for (uint32_t i = 0; i < kDepth; ++i) {
    Deliver(server(), {WrId::Kind::kLinkReceive, 0, earlier.generation, earlier.slot * kDepth + i});
  }
  Deliver(server(), {WrId::Kind::kLinkReceive, 0, later.generation, kLinks * kDepth});
  EXPECT_EQ(server().stats().stale_completions - before, kDepth + 1);
  EXPECT_EQ(server_posted(), kDepth);
  EXPECT_TRUE(link->open());
}

TEST_F(LinkReceivesTest, APeerThatSendsWithoutCreditLosesItsLinkAndNoOther) {
  Link* link = Connect(client_listener_, a_);
  ASSERT_NE(link, nullptr);
  const uint32_t accepted_qpn = (**accepted())->qpn();
  Link* other = Connect(others_listener_, b_);
  ASSERT_NE(other, nullptr);
  // The client believes the server's headers, and sends more than it may.
  inflated_qpn = accepted_qpn;
  Flood flood(~uint32_t{0}, 900);
  flood.Run(*link);
  PollUntil([&] { return !a_.reason().ok(); });
  EXPECT_TRUE(absl::IsResourceExhausted(a_.reason())) << a_.reason();
  EXPECT_THAT(std::string(a_.reason().message()), HasSubstr("without a credit"));
  Flood still(1000, 900);
  still.Run(*other);
  PollUntil([&] { return b_.received() == 1000; });
  EXPECT_TRUE(b_.reason().ok()) << b_.reason();
}

TEST_F(LinkReceivesTest, ThePinnedMemoryDoesNotGrowWithLinks) {
  const size_t before = counting_->registered;
  for (uint32_t links = 0; links < kLinks; ++links) {
    ASSERT_NE(Connect(client_listener_, a_), nullptr);
  }
  EXPECT_EQ(counting_->registered, before);
  const absl::Status refused = TryConnect(client_listener_, a_).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("all 12 links"));
}

TEST_F(LinkReceivesTest, ACompletionQueueThatIsLostIsReplacedAndNewLinksReceive) {
  Link* link = Connect(client_listener_, a_);
  ASSERT_NE(link, nullptr);
  for (ibv_cq* cq : counting_->cqs()) counting_->Raise(IBV_EVENT_CQ_ERR, cq);
  WaitUntilNoLinks();
  EXPECT_TRUE(absl::IsUnavailable(a_.reason())) << a_.reason();
  PollUntil([&] { return counting_->cqs().size() == 4; });
  EXPECT_EQ(server_posted(), 0u);
  a_ = Receiver();
  absl::StatusOr<Link*> again = absl::UnknownError("");
  while (!again.ok()) {
    again = TryConnect(client_listener_, a_);
    for (int turn = 0; turn < 100; ++turn) executor().Poll();
  }
  EXPECT_EQ(server_posted(), kDepth);
  Flood flood(1000, 900);
  flood.Run(**again);
  PollUntil([&] { return a_.received() == 1000; });
}

}  // namespace link_receives_test
}  // namespace verbena::internal
