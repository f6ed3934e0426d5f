#include "verbena/rpc/stream/windows.h"

#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

absl::Status SendWindow::Open(uint32_t limit) {
  const auto forward = static_cast<int32_t>(limit - limit_);
  if (forward < 1 || limit - sent_ > kMaxWindowAhead) {
    return absl::InvalidArgumentError(fmt::format(
        "a stream's window moves from {} to {}, {} bytes were sent", limit_, limit, sent_));
  }
  limit_ = limit;
  return absl::OkStatus();
}

bool ReceiveWindow::Receive(uint32_t cost) {
  if (cost > limit_ - received_) return false;
  received_ += cost;
  return true;
}

absl::Status StreamLink::OnReceived(const FrameHeader& frame) {
  if (frame.outcome != kCountsInLink) {
    if (frame.outcome <= kBesideMessages) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("a message of a stream that counts in window {}", frame.outcome));
  }
  const uint32_t cost = StreamCost(frame.body_bytes);
  const bool was_tight = is_tight();
  if (receive_.Receive(cost)) {
    if (!was_tight && is_tight()) TellUntold();
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("the peer's streams are beyond their window: {} bytes are unread, at most {}",
                  receive_.unread() + cost, kLinkWindowBytes));
}

void StreamLink::Consume(uint32_t cost) {
  receive_.Consume(cost);
  if (receive_.untold() < least_told()) return;
  if (link_ != nullptr && link_->open() && !SendWaiter::linked()) SendLimit();
}

void StreamLink::TellUntold() {
  IntrusiveList<UntoldStream> streams;
  streams.Append(untold_);
  while (UntoldStream* stream = streams.PopFront()) {
    stream->OnStreamLinkTight();
  }
}

void StreamLink::SendLimit() {
  if (link_->Append(LinkWindowFrame(receive_.next_limit()), 0) == nullptr) {
    link_->AwaitWritable(*this);
  } else {
    receive_.Move();
  }
}

void StreamLink::OnWritable(Link&) { SendLimit(); }

absl::Status StreamLink::OnWindow(const FrameHeader& frame) {
  if (frame.body_bytes != 0) return absl::InvalidArgumentError("a window frame has a body");
  VERBENA_RETURN_IF_ERROR(send_.Open(frame.argument));
  Wake();
  return absl::OkStatus();
}

bool StreamLink::TryTake(uint32_t cost) {
  if (!senders_.empty() && !senders_.serving()) return false;
  if (send_.available() < cost) return false;
  send_.Take(cost);
  return true;
}

void StreamLink::Wake() {
  while (!senders_.empty() && link_ != nullptr && link_->open() &&
         send_.available() >= senders_.first()->cost_wanted) {
    senders_.ServeFirst([](LinkWindowWaiter& sender) { sender.OnLinkWindow(); });
  }
}

void StreamLink::WatchRoom() {
  if (timer_running_) {
    frames_sent_.reset();
    return;
  }
  frames_sent_ = link_->stats().frames_sent;
  StartTimer();
}

Scheduler& StreamLink::scheduler() const { return link_->endpoint().executor(); }

size_t StreamLink::max_message_bytes() const {
  return link_->endpoint().limits().max_message_bytes;
}

size_t StreamLink::max_payload_bytes() const {
  return link_->endpoint().limits().max_payload_bytes;
}

void StreamLink::StartTimer() {
  VERBENA_DCHECK(!timer_running_ && room_waits_ > 0) << room_waits_ << " wait for room";
  Scheduler& timers = scheduler();
  timers.StartTimer(*this, SaturatingAdd(timers.now(), *room_grace_));
  timer_running_ = true;
}

void StreamLink::OnTimer() {
  timer_running_ = false;
  if (room_waits_ == 0) return;
  const uint64_t sent = link_->stats().frames_sent;
  if (frames_sent_ != sent) {
    frames_sent_ = sent;
    StartTimer();
    return;
  }
  link_->Close(absl::DeadlineExceededError(fmt::format(
      "{} has not taken a message of its streams for {} ms (ServerOptions::response_grace), and {} "
      "wait: it issues no credits",
      link_->peer(), std::chrono::duration_cast<std::chrono::milliseconds>(*room_grace_).count(),
      room_waits_)));
}

void StreamLink::OnLinkDown() {
  if (std::exchange(timer_running_, false)) scheduler().StopTimer(*this);
  room_waits_ = 0;
  link_ = nullptr;
  SendWaiter::Unlink();
  senders_.Clear();
  while (LinkedStream* stream = streams_.PopFront()) stream->OnStreamLinkLost();
}

}  // namespace verbena::internal
