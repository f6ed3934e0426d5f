// LinksFixture: two endpoints on one executor that the test drives, and links between them.
//
// Everything happens in the test's thread and in Poll(), so a test sees the state between any two
// turns. Frames that a Flood sends carry a sequence number, which Receiver checks.

#ifndef VERBENA_TESTS_TRANSPORT_LINK_LINKS_FIXTURE_H_
#define VERBENA_TESTS_TRANSPORT_LINK_LINKS_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/connect/qp_connector.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena {

// Counts frames; every one must be the next of its link.
class Receiver final : public FrameSink {
 public:
  absl::Status OnFrame(Link&, const FrameHeader& frame, const char* body) override {
    EXPECT_EQ(frame.call_slot, received_);
    for (uint32_t i = 0; i < frame.body_bytes; ++i) {
      if (body[i] != static_cast<char>(frame.call_slot)) ADD_FAILURE() << "byte " << i;
    }
    ++received_;
    return absl::OkStatus();
  }
  void OnLinkDown(Link&, const absl::Status& reason) override { reason_ = reason; }
  bool ExpectsFrames() const override { return false; }

  uint32_t received() const { return received_; }
  const absl::Status& reason() const { return reason_; }

 private:
  uint32_t received_ = 0;
  absl::Status reason_;
};

// Sends `count` numbered frames as fast as the link takes them.
class Flood final : private SendWaiter {
 public:
  Flood(uint32_t count, size_t bytes) : count_(count) { body_bytes = bytes; }

  void Run(Link& link) {
    while (sent_ < count_ && Append(link)) {
    }
    if (sent_ < count_ && !SendWaiter::linked()) link.AwaitWritable(*this);
  }
  uint32_t sent() const { return sent_; }

 private:
  bool Append(Link& link) {
    FrameHeader frame;
    frame.kind = FrameKind::kRequest;
    frame.call_slot = sent_;
    char* body = link.Append(frame, body_bytes);
    if (body == nullptr) return false;
    std::memset(body, static_cast<int>(sent_ & 0xff), body_bytes);
    ++sent_;
    return true;
  }
  void OnWritable(Link& link) override {
    EXPECT_TRUE(Append(link));
    Run(link);
  }

  const uint32_t count_;
  uint32_t sent_ = 0;
};

class LinksFixture : public testing::Test {
 protected:
  void Start(const LinkLimits& client_limits, const LinkLimits& server_limits,
             QpConnector* connector = nullptr) {
    executor_ = *Executor::Create({});
    device_ = *SoftDevice::Create({});
    context_ = *DeviceContext::Create(*device_, {.use_connector = connector});
    client_ = *Endpoint::Create(*executor_, *context_, client_limits);
    server_ = *Endpoint::Create(*executor_, *context_, server_limits);
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

  // `check` runs between the turns.
  void PollUntil(const std::function<bool()>& done, const std::function<void()>& check = [] {}) {
    while (!done()) {
      executor_->Poll();
      check();
      if (HasFatalFailure()) return;
    }
  }

  // Until both ends have torn their links down.
  void WaitUntilNoLinks() {
    PollUntil([this] { return client_->stats().links + server_->stats().links == 0; });
  }

  // A link from client() to server(); returns the client's end, nullptr after a failure.
  Link* Connect(FrameSink& client_sink, FrameSink& server_sink) {
    absl::StatusOr<Link*> link = TryConnect(client_sink, server_sink);
    EXPECT_TRUE(link.ok()) << link.status();
    PollUntil([this] { return accepted_.has_value(); });
    EXPECT_TRUE(accepted_->ok()) << accepted_->status();
    return link.value_or(nullptr);
  }

  // The same where it may fail. What became of it at the server: accepted(), later.
  absl::StatusOr<Link*> TryConnect(FrameSink& client_sink, FrameSink& server_sink) {
    accepted_.reset();
    Spawn(*executor_, AcceptOne(server_sink));
    absl::StatusOr<Link*> link;
    RunToEnd(ConnectOne(client_sink, link));
    return link;
  }

  // The server's end of the last link.
  const std::optional<absl::StatusOr<Link*>>& accepted() const { return accepted_; }

  Executor& executor() { return *executor_; }
  SoftDevice& device() { return *device_; }
  // Of the device that both endpoints are on.
  ibv_context& context() { return *device_->context(); }
  DeviceContext& device_context() { return *context_; }
  Endpoint& client() { return *client_; }
  Endpoint& server() { return *server_; }

 private:
  static Task<void> AndThen(Task<void> task, bool& done) {
    co_await std::move(task);
    done = true;
  }

  Task<void> AcceptOne(FrameSink& sink) {
    absl::StatusOr<std::unique_ptr<MessageStream>> stream = co_await listener_->Accept();
    if (!stream.ok()) co_return;
    absl::StatusOr<LinkParameters> offer = co_await ReceiveOffer(**stream);
    if (!offer.ok()) co_return;
    accepted_ = co_await server_->Accept(*std::move(stream), *offer, sink);
  }

  Task<void> ConnectOne(FrameSink& sink, absl::StatusOr<Link*>& link) {
    absl::StatusOr<std::unique_ptr<MessageStream>> stream = co_await bootstrap_.Connect("server");
    EXPECT_TRUE(stream.ok()) << stream.status();
    if (!stream.ok()) co_return;
    link = co_await client_->Connect(*std::move(stream), sink, 0);
  }

  LocalNetwork network_;
  LocalBootstrap bootstrap_{network_};
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<SoftDevice> device_;
  std::unique_ptr<DeviceContext> context_;
  std::unique_ptr<Endpoint> client_;
  std::unique_ptr<Endpoint> server_;
  std::unique_ptr<MessageListener> listener_;
  std::optional<absl::StatusOr<Link*>> accepted_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_LINK_LINKS_FIXTURE_H_
