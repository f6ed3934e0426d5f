// How an Endpoint gets over the loss of its queues: what the device reports as CQ_ERR or SRQ_ERR.

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {
namespace {

// Between two attempts to make new queues. (start)
constexpr Duration kFirstPause = std::chrono::milliseconds(100);
constexpr Duration kLongestPause = std::chrono::seconds(10);

}  // namespace

void Endpoint::SubscribeQueues() {
  queues_.Subscribe([this, gate = gate(), queues = queues_.number()](ibv_event_type type) {
    if (gate->open()) OnQueueEvent(type, queues);
  });
}

void Endpoint::CloseAll(const absl::Status& reason) {
  for (LinkSlot& slot : links_.slots()) {
    if (slot.link != nullptr) slot.link->Close(reason);
  }
}

void Endpoint::OnQueueEvent(ibv_event_type type, uint32_t queues) {
  if (service_.shutting_down()) return;
  const bool device_failed = type == IBV_EVENT_DEVICE_FATAL;
  // Queues that were replaced may have failed more than once.
  if (!device_failed && (service_.failed() || queues != queues_.number())) return;
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
  service_.Fail(reason);
  CloseAll(service_.reason());
}

void Endpoint::LoseQueues(const char* reason) {
  // A Rebuild() that is under way sees this.
  queues_.MarkLost();
  const bool is_first = service_.Suspend(absl::UnavailableError(
      fmt::format("{} lost a queue of this executor ({}), which is being replaced; try again",
                  device_name(), reason)));
  if (is_first) tasks_.holds.Spawn(Rebuild());
  CloseAll(service_.reason());
}

Task<void> Endpoint::AwaitMaking() {
  // Two rounds: the second is ordered behind the ends of queue pairs that were made for nothing.
  for (int i = 0; i < 2; ++i) {
    (void)co_await context_.control().Finish(ControlKind::kConnect, this,
                                             [] { return absl::OkStatus(); });
  }
}

Task<void> Endpoint::Rebuild() {
  co_await tasks_.links.Join();
  co_await AwaitMaking();
  for (Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    if (service_.failed()) co_return;
    absl::Status replaced = co_await ReplaceQueues();
    if (service_.failed()) co_return;
    if (replaced.ok() && !queues_.are_lost()) break;
    if (replaced.ok()) replaced = absl::UnavailableError("the new queues are lost as well");
    Log(LogLevel::kError, fmt::format("{}: lost queues are not replaced yet: {}", device_name(),
                                      replaced.ToString()));
    if (!(co_await Sleep(pause)).ok()) co_return;
  }
  service_.Resume();
  Log(LogLevel::kWarning, fmt::format("{}: lost queues are replaced", device_name()));
}

// The completion queue is made here: its executor polls it.
Task<absl::Status> Endpoint::ReplaceQueues() {
  VERBENA_CO_ASSIGN_OR_RETURN(
      std::unique_ptr<ReceiveRing> made,
      co_await context_.control().Finish(ControlKind::kConnect, this, [this] {
        return EndpointQueues::NewRing(context_, limits_);
      }));
  // The lost ring, once the new one has its place.
  std::unique_ptr<ReceiveRing> unused = std::move(made);
  const absl::Status exchanged = queues_.Exchange(unused);
  if (exchanged.ok()) {
    SubscribeQueues();
    UpdateReceiveTarget();
  }
  (void)co_await context_.control().Finish(ControlKind::kTeardown, this,
                                           [unused = std::move(unused)]() mutable {
                                             unused.reset();
                                             return absl::OkStatus();
                                           });
  co_return exchanged;
}

}  // namespace verbena::internal
