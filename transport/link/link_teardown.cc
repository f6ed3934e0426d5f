// Link: its teardown, from the queue pair's move to ERR to its destruction. Each wait is bounded:
// some devices never flush, or never send the event.

#include <chrono>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/throttled_log.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

Task<void> Link::Drain(DeviceContext& context, TurnPacer& pacer) {
  co_await qp_.MoveToError(context.control(), context.device());
  (void)co_await pacer.Pass();
  const TimePoint limit =
      SaturatingAdd(endpoint_.executor().now(), endpoint_.limits().teardown_timeout);
  LinkSendQueue& sends = sender_.queue();
  // A device that completes no marker in ERR (siw) flushed the posted WRs when the queue pair moved
  // there; destroying the queue pair ends the rest.
  if (sends.slots().in_flight() > 0 && context.device().capabilities().flushes_in_error) {
    sends.PostDrainMarker();
    absl::Status drained = co_await qp_.AwaitDrained(limit);
    if (!drained.ok()) {
      static thread_local ThrottledLog log({.lines = 1, .interval = std::chrono::seconds(10)});
      log.Write(LogLevel::kWarning, endpoint_.executor().now(),
                fmt::format("QPN {:#x}: {} of the posted WRs did not flush in time", qpn(),
                            sends.slots().in_flight()));
    }
  }
  if (context.device().capabilities().last_wqe_event) {
    context.PollEventsIfUnattended();
    // Early, late or never: when it does not come, polling the CQ empty around the destruction is
    // all there is.
    (void)co_await qp_.AwaitLastWqe(limit);
  }
}

Task<std::vector<BufferPin>> Link::Destroy(ControlPool& control) {
  LeaseTable::Remains remains = sender_.leases().table().TakeAll();
  co_await qp_.Destroy(control, std::move(remains.windows));
  state_ = LinkState::kClosed;
  co_return std::move(remains.pins);
}

}  // namespace verbena::internal
