// How an Endpoint gets over the loss of its queues: what the device reports as CQ_ERR or SRQ_ERR.

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/log/log.h"
#include "verbena/transport/log/mutant.h"

namespace verbena::internal {
namespace {

// Between two attempts to make new queues. (start)
constexpr Duration kFirstPause = std::chrono::milliseconds(100);
constexpr Duration kLongestPause = std::chrono::seconds(10);

}  // namespace

void Endpoint::SubscribeQueues() {
  const auto handler = [this, gate = gate_, queues = queues_](ibv_event_type type) {
    if (gate->open()) OnQueueEvent(type, queues);
  };
  context_.SubscribeQueue(cq_, executor_, handler);
  context_.SubscribeQueue(receives_->srq(), executor_, handler);
}

void Endpoint::UnsubscribeQueues() {
  context_.UnsubscribeQueue(cq_);
  context_.UnsubscribeQueue(receives_->srq());
}

void Endpoint::CloseAll(const absl::Status& reason) {
  for (LinkSlot& slot : links_.slots()) {
    if (slot.link != nullptr) slot.link->Close(reason);
  }
}

void Endpoint::OnQueueEvent(ibv_event_type type, uint32_t queues) {
  if (shutting_down_ || VERBENA_MUTANT(kQueueErrorIgnored)) return;
  const bool device_failed = type == IBV_EVENT_DEVICE_FATAL;
  // Queues that were replaced may have failed more than once.
  if (!device_failed && (failed_ || queues != queues_)) return;
  if (device_failed) {
    Fail(absl::UnavailableError(fmt::format(
        "{} has failed, or was removed ({}): its links are lost, and no other can use it until it "
        "is opened again",
        device_name(), ibv_event_type_str(type))));
  } else {
    LoseQueues(ibv_event_type_str(type));
  }
}

void Endpoint::Fail(const absl::Status& reason) {
  failed_ = true;
  broken_ = reason;
  CloseAll(broken_);
}

void Endpoint::LoseQueues(const char* reason) {
  // A Rebuild() that is under way sees this.
  queues_are_lost_ = true;
  if (broken_.ok()) {
    broken_ = absl::UnavailableError(
        fmt::format("{} lost a queue of this executor ({}), which is being replaced; try again",
                    device_name(), reason));
    holds_.Spawn(Rebuild());
  }
  CloseAll(broken_);
}

Task<void> Endpoint::AwaitMaking() {
  // Two rounds: the second is ordered behind the ends of queue pairs that were made for nothing.
  for (int i = 0; i < 2; ++i) {
    (void)co_await context_.control().Finish(ControlKind::kConnect, this,
                                             [] { return absl::OkStatus(); });
  }
}

Task<void> Endpoint::Rebuild() {
  co_await tasks_.Join();
  co_await AwaitMaking();
  for (Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    if (failed_) co_return;
    absl::Status replaced = co_await ReplaceQueues();
    if (failed_) co_return;
    if (replaced.ok() && !queues_are_lost_) break;
    if (replaced.ok()) replaced = absl::UnavailableError("the new queues are lost as well");
    Log(LogLevel::kError, fmt::format("{}: lost queues are not replaced yet: {}", device_name(),
                                      replaced.ToString()));
    if (!(co_await Sleep(pause)).ok()) co_return;
  }
  broken_ = absl::OkStatus();
  Log(LogLevel::kWarning, fmt::format("{}: lost queues are replaced", device_name()));
}

// The completion queue is made here: its executor polls it.
Task<absl::Status> Endpoint::ReplaceQueues() {
  absl::StatusOr<std::unique_ptr<ReceiveRing>> made =
      co_await context_.control().Finish(ControlKind::kConnect, this, [this] {
        return ReceiveRing::Create(context_.device(), context_.pd(), limits_.srq_depth,
                                   spare_receives_, limits_.eager_bytes);
      });
  if (!made.ok()) co_return made.status();
  std::unique_ptr<ReceiveRing> unused = *std::move(made);
  absl::StatusOr<ibv_cq*> cq =
      executor_.AddCq(context_.device(),
                      static_cast<int>(CompletionQueueEntries(limits_) + spare_receives_), *this);
  if (cq.ok()) {
    UnsubscribeQueues();
    if (absl::Status removed = executor_.RemoveCq(cq_); !removed.ok()) {
      Log(LogLevel::kError, fmt::format("a lost completion queue stays: {}", removed.ToString()));
    }
    cq_ = *cq;
    ++queues_;
    queues_are_lost_ = false;
    std::swap(receives_, unused);
    lost_receives_.Follow(*receives_);
    SubscribeQueues();
    UpdateReceiveTarget();
  }
  (void)co_await context_.control().Finish(ControlKind::kTeardown, this,
                                           [unused = std::move(unused)]() mutable {
                                             unused.reset();
                                             return absl::OkStatus();
                                           });
  co_return cq.status();
}

}  // namespace verbena::internal
