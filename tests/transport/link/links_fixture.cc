#include "tests/transport/link/links_fixture.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/executor/spawn.h"

namespace verbena::internal {

absl::Status Receiver::OnFrame(Link&, const FrameHeader& frame, const char* body) {
  EXPECT_EQ(frame.call_generation, received_);
  for (uint32_t i = 0; i < frame.body_bytes; ++i) {
    if (body[i] != static_cast<char>(frame.call_generation)) ADD_FAILURE() << "byte " << i;
  }
  ++received_;
  return absl::OkStatus();
}

Flood::Flood(uint32_t count, size_t bytes, uint32_t first) : count_(count), sent_(first) {
  body_bytes = bytes;
}

void Flood::Run(Link& link) {
  while (sent_ < count_ && Append(link)) {
  }
  if (sent_ < count_ && !SendWaiter::linked()) link.AwaitWritable(*this);
}

bool Flood::Append(Link& link) {
  FrameHeader frame;
  frame.kind = FrameKind::kRequest;
  frame.call_generation = sent_;
  char* body = link.Append(frame, body_bytes);
  if (body == nullptr) return false;
  std::memset(body, static_cast<int>(sent_ & 0xff), body_bytes);
  ++sent_;
  return true;
}

void Flood::OnWritable(Link& link) {
  EXPECT_TRUE(Append(link));
  Run(link);
}

void LinksFixture::Start(const LinkLimits& client_limits, const LinkLimits& server_limits,
                         QpConnector* connector) {
  executor_ = *Executor::Create({.clock = &clock_});
  device_ = *SoftDevice::Create(device_options());
  wrapper_ = Wrap(*device_);
  Device& seen = wrapper_ == nullptr ? static_cast<Device&>(*device_) : *wrapper_;
  context_ = *DeviceContext::Create(
      seen,
      {.event_thread = has_event_thread(), .rdma = rdma_options(), .use_connector = connector});
  client_ = *Endpoint::Create(*executor_, *context_, client_limits);
  server_ = *Endpoint::Create(*executor_, *context_, server_limits);
  listener_ = *bootstrap_.Listen("server");
}

void LinksFixture::TearDown() {
  // A queue pair that does not drain is given up after a time.
  clock_.GoOn();
  RunToEnd(client_->Shutdown());
  RunToEnd(server_->Shutdown());
}

void LinksFixture::RunToEnd(Task<void> task) {
  bool done = false;
  Spawn(*executor_, AndThen(std::move(task), done));
  while (!done) Turn();
}

void LinksFixture::PollUntil(const std::function<bool()>& done,
                             const std::function<void()>& check) {
  while (!done()) {
    Turn();
    check();
    if (HasFatalFailure()) return;
  }
}

bool LinksFixture::DoneInTime(const std::function<bool()>& done) {
  const TimePoint limit = Clock::Real().Now() + std::chrono::seconds(20);
  while (!done()) {
    if (Clock::Real().Now() > limit) return false;
    Turn();
  }
  return true;
}

void LinksFixture::WaitUntilNoLinks() {
  PollUntil([this] { return client_->stats().links + server_->stats().links == 0; });
}

std::unique_ptr<MessageStream> LinksFixture::WrapClientStream(
    std::unique_ptr<MessageStream> stream) {
  return stream;
}

std::unique_ptr<MessageStream> LinksFixture::WrapServerStream(
    std::unique_ptr<MessageStream> stream) {
  return stream;
}

Link* LinksFixture::Connect(LinkListener& client_listener, LinkListener& server_listener) {
  absl::StatusOr<Link*> link = TryConnect(client_listener, server_listener);
  EXPECT_TRUE(link.ok()) << link.status();
  PollUntil([this] { return accepted_.has_value(); });
  EXPECT_TRUE(accepted_->ok()) << accepted_->status();
  return link.value_or(nullptr);
}

absl::StatusOr<Link*> LinksFixture::TryConnect(LinkListener& client_listener,
                                               LinkListener& server_listener) {
  accepted_.reset();
  Spawn(*executor_, AcceptOne(server_listener));
  absl::StatusOr<Link*> link;
  RunToEnd(ConnectOne(client_listener, link));
  return link;
}

void LinksFixture::BeginConnect(LinkListener& client_listener, LinkListener& server_listener,
                                std::optional<absl::StatusOr<Link*>>& link) {
  accepted_.reset();
  Spawn(*executor_, AcceptOne(server_listener));
  Spawn(*executor_, ConnectAndTell(client_listener, link));
}

Task<absl::StatusOr<Link*>> LinksFixture::ConnectBoth(LinkListener& client_listener,
                                                      LinkListener& server_listener) {
  Spawn(*executor_, AcceptOne(server_listener));
  absl::StatusOr<Link*> link;
  co_await ConnectOne(client_listener, link);
  co_return link;
}

void LinksFixture::Turn() {
  if (!executor_->Poll()) std::this_thread::yield();
}

Task<void> LinksFixture::AndThen(Task<void> task, bool& done) {
  co_await std::move(task);
  done = true;
}

Task<void> LinksFixture::AcceptOne(LinkListener& listener) {
  absl::StatusOr<std::unique_ptr<MessageStream>> stream = co_await listener_->Accept();
  if (!stream.ok()) co_return;
  absl::StatusOr<LinkParameters> offer = co_await ReceiveOffer(**stream);
  if (!offer.ok()) co_return;
  last_offer_ = *offer;
  try {
    accepted_ = co_await server_->Accept(WrapServerStream(*std::move(stream)), *offer, listener);
  } catch (const std::exception& error) {
    accepted_ = absl::InternalError(error.what());
  }
}

Task<void> LinksFixture::ConnectOne(LinkListener& listener, absl::StatusOr<Link*>& link) {
  absl::StatusOr<std::unique_ptr<MessageStream>> stream = co_await bootstrap_.Connect("server");
  EXPECT_TRUE(stream.ok()) << stream.status();
  if (!stream.ok()) co_return;
  link = co_await client_->Connect(WrapClientStream(*std::move(stream)), listener, {}, proof_time);
}

Task<void> LinksFixture::ConnectAndTell(LinkListener& listener,
                                        std::optional<absl::StatusOr<Link*>>& told) {
  absl::StatusOr<Link*> link;
  co_await ConnectOne(listener, link);
  told = link;
}

}  // namespace verbena::internal
