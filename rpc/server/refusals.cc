#include "verbena/rpc/server/refusals.h"

#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

absl::Status Refusals::Refuse(Link& link, CallId id, RefusalReason reason) {
  if (queue_.size() >= kMaxQueued) {
    return absl::ResourceExhaustedError(fmt::format(
        "the client gives up refused calls without taking their answers; {} wait", queue_.size()));
  }
  if (queue_.size() >= kOwnQueued && !source_.refusals().TryTake(1)) {
    return absl::ResourceExhaustedError(
        fmt::format("clients of one address give up refused calls without taking their answers; {} "
                    "wait here, {} in all beyond {} for each link",
                    queue_.size(), ServerSource::kMaxQueuedRefusals, kOwnQueued));
  }
  link_ = &link;
  queue_.PushBack({id, reason});
  if (wait()) return absl::OkStatus();
  // Send it now if there is room: a queued call may be refused while no frame arrives, and then
  // nothing else would send the refusal.
  SendFirst(link);
  if (queue_.empty()) return absl::OkStatus();
  AwaitRoom(link);
  if (!timer_running_) StartTimer();
  return absl::OkStatus();
}

void Refusals::OnWritable(Link& link) {
  SendFirst(link);
  if (!queue_.empty()) AwaitRoom(link);
}

void Refusals::SendFirst(Link& link) {
  const Refusal& refusal = queue_.front();
  const std::string& body = state_.RefusalBody(refusal.reason);
  const FrameHeader frame =
      FailureFrame({refusal.slot, refusal.generation}, state_.RefusalStatus(refusal.reason).code(),
                   Outcome::kNotExecuted);
  char* room = link.Append(frame, body.size());
  if (room == nullptr) return;
  body.copy(room, body.size());
  if (queue_.size() > kOwnQueued) source_.refusals().Give(1);
  queue_.PopFront();
  if (queue_.empty()) StopTimer();
}

void Refusals::AwaitRoom(Link& link) {
  body_bytes = state_.RefusalBody(queue_.front().reason).size();
  link.AwaitWritable(*this);
}

void Refusals::StartTimer() {
  due_ = queue_.queued();
  Executor& executor = state_.executor();
  executor.StartTimer(*this, SaturatingAdd(executor.now(), state_.limits().response_grace));
  timer_running_ = true;
}

void Refusals::StopTimer() {
  if (std::exchange(timer_running_, false)) state_.executor().StopTimer(*this);
}

void Refusals::OnTimer() {
  timer_running_ = false;
  if (queue_.left() >= due_) {
    StartTimer();
    return;
  }
  link_->Close(absl::DeadlineExceededError(fmt::format(
      "{} has not taken the refusals of its calls for {} ms (ServerOptions::response_grace), of "
      "which {} wait: it issues no credits",
      peer_,
      std::chrono::duration_cast<std::chrono::milliseconds>(state_.limits().response_grace).count(),
      queue_.size())));
}

void Refusals::OnLinkDown() {
  SendWaiter::Unlink();
  StopTimer();
  if (queue_.size() > kOwnQueued) source_.refusals().Give(queue_.size() - kOwnQueued);
  queue_.Clear();
}

}  // namespace verbena::internal
