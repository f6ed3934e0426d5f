// The last steps of a handshake keep their order: the server sends nothing before the client's
// Ready, and the client takes a SEND as soon as its Ready is out.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/connect/scripted_stream.h"
#include "tests/transport/device/delegating_device.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace handshake_order_test {

// Remembers the last state of each queue pair.
class RecordingDevice final : public DelegatingDevice {
 public:
  using DelegatingDevice::DelegatingDevice;

  absl::Status ModifyQp(ibv_qp* qp, const ibv_qp_attr& attributes, int mask) override {
    if ((mask & IBV_QP_STATE) != 0) {
      std::lock_guard lock(mutex_);
      states_[qp->qp_num] = attributes.qp_state;
    }
    return DelegatingDevice::ModifyQp(qp, attributes, mask);
  }

  // Queue pairs whose last state is `state`.
  int QpsIn(ibv_qp_state state) {
    std::lock_guard lock(mutex_);
    int count = 0;
    for (const auto& [number, its_state] : states_) count += its_state == state;
    return count;
  }

 private:
  std::mutex mutex_;  // control verbs run on threads of their own
  std::map<uint32_t, ibv_qp_state> states_;
};

class HandshakeOrderTest : public LinksFixture {
 protected:
  void SetUp() override { Start({}, {}); }

  std::unique_ptr<Device> Wrap(SoftDevice& device) override {
    auto recording = std::make_unique<RecordingDevice>(device);
    recording_ = recording.get();
    return recording;
  }
  std::unique_ptr<MessageStream> WrapClientStream(std::unique_ptr<MessageStream> stream) override {
    const ScriptedStream::Step stop = [this](MessageStream&, int message) -> Task<absl::Status> {
      if (message == 2) (void)co_await go_.Wait();
      co_return absl::OkStatus();
    };
    return std::make_unique<ScriptedStream>(
        std::move(stream), stops_after_ready_ ? ScriptedStream::Script{.after_send = stop}
                                              : ScriptedStream::Script{.before_send = stop});
  }

  // Starts a handshake that stops before or after the client's second message, its Ready.
  void Begin() { BeginConnect(client_listener_, server_listener_, connected_); }

  int QpsIn(ibv_qp_state state) { return recording_->QpsIn(state); }

  RecordingDevice* recording_ = nullptr;
  bool stops_after_ready_ = false;
  Event go_;
  std::optional<absl::StatusOr<Link*>> connected_;
  Receiver client_listener_;
  Receiver server_listener_;
};

TEST_F(HandshakeOrderTest, TheServersQueuePairSendsOnlyOnceReadyHasCome) {
  Begin();
  PollUntil([&] { return client().stats().links_opened == 1; });
  for (int i = 0; i < 100; ++i) executor().Poll();
  EXPECT_EQ(QpsIn(IBV_QPS_RTS), 1) << "the client's alone";
  EXPECT_EQ(QpsIn(IBV_QPS_RTR), 1);
  go_.Set();
  PollUntil([&] { return connected_.has_value() && accepted().has_value(); });
  EXPECT_EQ(QpsIn(IBV_QPS_RTS), 2);
  ASSERT_TRUE(accepted()->ok()) << accepted()->status();
  Flood back(10, 32);
  back.Run(**accepted().value());
  PollUntil([&] { return client_listener_.received() == 10; });
}

TEST_F(HandshakeOrderTest, AClientTakesASendThatComesBeforeItsReadyIsDone) {
  stops_after_ready_ = true;
  Begin();
  PollUntil([&] { return accepted().has_value(); });
  ASSERT_TRUE(accepted()->ok()) << accepted()->status();
  Flood early(1, 32);
  Link* server_link = **accepted();
  early.Run(*server_link);
  PollUntil([&] { return server_link->stats().sends == 1; });
  for (int i = 0; i < 1000; ++i) executor().Poll();
  EXPECT_EQ(client_listener_.received(), 1u);
  go_.Set();
  PollUntil([&] { return connected_.has_value(); });
}

}  // namespace handshake_order_test
}  // namespace verbena::internal
