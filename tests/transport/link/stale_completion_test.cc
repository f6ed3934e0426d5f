// A completion whose link is gone, and whose slot another link has.

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/executor/completion_sink.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena {
namespace {

class SilentSink final : public FrameSink {
 public:
  absl::Status OnFrame(Link&, const FrameHeader&, const char*) override { return absl::OkStatus(); }
  void OnLinkDown(Link&, const absl::Status&) override {}
  bool ExpectsFrames() const override { return false; }
};

// Two endpoints with room for one link each, on one executor that the test drives.
class StaleCompletionTest : public testing::Test {
 protected:
  void SetUp() override {
    executor_ = *Executor::Create({});
    device_ = *SoftDevice::Create({});
    context_ = *DeviceContext::Create(*device_, {});
    const LinkLimits one_link = {.max_links = 1, .srq_depth = 64};
    client_ = *Endpoint::Create(*executor_, *context_, one_link);
    server_ = *Endpoint::Create(*executor_, *context_, one_link);
    listener_ = *bootstrap_.Listen("server");
  }

  void TearDown() override {
    RunToEnd(client_->Shutdown());
    RunToEnd(server_->Shutdown());
  }

  void RunToEnd(Task<void> task) {
    bool done = false;
    Spawn(*executor_, AndThen(std::move(task), done));
    while (!done) executor_->Poll();
  }

  // Until both ends have torn their links down.
  void WaitUntilNoLinks() {
    while (client_->stats().links + server_->stats().links != 0) executor_->Poll();
  }

  // A link from client_ to server_; returns the client's end.
  Link* Connect() {
    Spawn(*executor_, AcceptOne());
    Link* link = nullptr;
    RunToEnd(ConnectOne(link));
    return link;
  }

  // As the completion queue would: Endpoint hands this out to its executor alone.
  void Deliver(Endpoint& endpoint, const WrId& id) {
    ibv_wc completion = {};
    completion.wr_id = id.Pack();
    completion.status = IBV_WC_SUCCESS;
    completion.opcode = IBV_WC_SEND;
    auto& sink = (CompletionSink&)endpoint;  // NOLINT: a private base, which only this cast reaches
    sink.OnCompletions(&completion, 1);
  }

  Endpoint& client() { return *client_; }

 private:
  static Task<void> AndThen(Task<void> task, bool& done) {
    co_await std::move(task);
    done = true;
  }

  Task<void> AcceptOne() {
    absl::StatusOr<std::unique_ptr<MessageStream>> stream = co_await listener_->Accept();
    if (!stream.ok()) co_return;
    absl::StatusOr<LinkParameters> offer = co_await ReceiveOffer(**stream);
    if (!offer.ok()) co_return;
    absl::StatusOr<Link*> link = co_await server_->Accept(*std::move(stream), *offer, sink_);
    EXPECT_TRUE(link.ok()) << link.status();
  }

  Task<void> ConnectOne(Link*& link) {
    absl::StatusOr<std::unique_ptr<MessageStream>> stream = co_await bootstrap_.Connect("server");
    EXPECT_TRUE(stream.ok()) << stream.status();
    if (!stream.ok()) co_return;
    absl::StatusOr<Link*> connected = co_await client_->Connect(*std::move(stream), sink_, 0);
    EXPECT_TRUE(connected.ok()) << connected.status();
    if (connected.ok()) link = *connected;
  }

  SilentSink sink_;  // of every link, at both ends
  LocalNetwork network_;
  LocalBootstrap bootstrap_{network_};
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<SoftDevice> device_;
  std::unique_ptr<DeviceContext> context_;
  std::unique_ptr<Endpoint> client_;
  std::unique_ptr<Endpoint> server_;
  std::unique_ptr<MessageListener> listener_;
};

TEST_F(StaleCompletionTest, ItIsCountedAndDoesNotTouchTheSlotsNextOwner) {
  Link* first = Connect();
  ASSERT_NE(first, nullptr);
  const LinkKey old_key = first->key();
  first->Close(absl::CancelledError("the test ends it"));
  WaitUntilNoLinks();
  Link* next = Connect();
  ASSERT_NE(next, nullptr);
  ASSERT_EQ(next->key().slot, old_key.slot);

  Deliver(client(), {WrId::Kind::kSend, 0, old_key.generation, old_key.slot});
  EXPECT_EQ(client().stats().stale_completions, 1u);
  EXPECT_TRUE(next->open());
}

}  // namespace
}  // namespace verbena
