// A liveness check closes few links in one turn of the executor, however many are silent, or idle,
// at once. Only the test moves the clock.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace paced_checks_test {

using std::chrono::seconds;

constexpr uint32_t kLinks = 60;

// Queue pairs whose SENDs go nowhere, but for the marker of their teardown.
std::set<uint32_t> mute_qps;
int (*real_post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;

int PostUnlessMute(ibv_qp* qp, ibv_send_wr* wrs, ibv_send_wr** refused) {
  if (wrs->num_sge != 0 && mute_qps.contains(qp->qp_num)) return 0;
  return real_post_send(qp, wrs, refused);
}

// One for all links.
class CountingSink final : public LinkListener {
 public:
  absl::Status OnFrame(Link&, const FrameHeader&, const char*) override { return absl::OkStatus(); }
  void OnLinkDown(Link&, const absl::Status& reason) override {
    ++down;
    if (reason.code() == expected) ++as_expected;
  }
  bool ExpectsFrames() const override { return expects_frames; }

  bool expects_frames = false;
  absl::StatusCode expected = absl::StatusCode::kOk;
  uint32_t down = 0;
  uint32_t as_expected = 0;
};

class PacedChecksTest : public LinksFixture {
 protected:
  void Begin(Duration idle_timeout) {
    const LinkLimits limits = {.max_links = kLinks, .ping_interval = seconds(2)};
    LinkLimits client = limits;
    client.idle_timeout = idle_timeout;
    Start(client, limits);
    clock().Stop();
    real_post_send = std::exchange(context().ops.post_send, PostUnlessMute);
    for (uint32_t i = 0; i < kLinks; ++i) {
      clients_.push_back(Connect(client_listener_, server_listener_));
      ASSERT_NE(clients_.back(), nullptr);
      servers_.insert((**accepted())->qpn());
    }
  }
  void TearDown() override {
    mute_qps.clear();
    LinksFixture::TearDown();
    context().ops.post_send = real_post_send;
  }

  // Runs turns until all links are lost. Returns the most that were lost in one turn.
  uint32_t MostInOneTurn() {
    uint32_t most = 0;
    uint32_t before = client_listener_.down;
    int turns = 0;
    while (client_listener_.down < kLinks) {
      if (++turns % 50 == 0) clock().Advance(seconds(1));
      executor().Poll();
      most = std::max(most, client_listener_.down - before);
      before = client_listener_.down;
    }
    return most;
  }

  CountingSink client_listener_;
  CountingSink server_listener_;
  std::vector<Link*> clients_;
  std::set<uint32_t> servers_;
};

TEST_F(PacedChecksTest, FewOfManySilentLinksCloseInOneTurn) {
  Begin(Duration::zero());
  mute_qps = servers_;
  client_listener_.expects_frames = true;
  client_listener_.expected = absl::StatusCode::kUnavailable;
  // A link is watched once it has sent something.
  for (Link* link : clients_) Flood(1, 16).Run(*link);
  EXPECT_LE(MostInOneTurn(), 8u);
  EXPECT_EQ(client_listener_.as_expected, kLinks);
}

TEST_F(PacedChecksTest, FewOfManyIdleLinksCloseInOneTurn) {
  Begin(seconds(60));
  client_listener_.expected = absl::StatusCode::kCancelled;
  EXPECT_LE(MostInOneTurn(), 8u);
  EXPECT_EQ(client_listener_.as_expected, kLinks);
}

}  // namespace paced_checks_test
}  // namespace verbena::internal
