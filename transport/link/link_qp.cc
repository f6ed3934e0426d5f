#include "verbena/transport/link/link_qp.h"

#include <utility>

#include "verbena/transport/base/log.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/link/qp_setup.h"

namespace verbena::internal {
namespace {

Task<absl::Status> WaitFor(Event& event) { co_return co_await event.Wait(); }

}  // namespace

Task<void> LinkQp::MoveToError(ControlPool& control, Device& device) {
  stream_.Close();
  ibv_qp* const qp = qp_.get();
  // Until the queue pair is in ERR, the peer may use up receives of the endpoint: so this goes
  // ahead of others' destructions.
  absl::Status status = co_await control.Finish(
      ControlKind::kToError, qp, [&device, qp] { return MoveQpToError(device, qp); });
  if (!status.ok()) Log(LogLevel::kWarning, status.ToString());
  co_await stream_.AwaitUnread();
}

Task<absl::Status> LinkQp::AwaitDrained(TimePoint limit) {
  co_return co_await WithDeadline(WaitFor(drained_), limit);
}

Task<absl::Status> LinkQp::AwaitLastWqe(TimePoint limit) {
  co_return co_await WithDeadline(WaitFor(last_wqe_), limit);
}

Task<void> LinkQp::Destroy(ControlPool& control, std::vector<MwHandle> windows) {
  const void* const order = qp_.get();
  (void)co_await control.Finish(ControlKind::kTeardown, order,
                                [windows = std::move(windows), qp = std::move(qp_)]() mutable {
                                  windows.clear();
                                  qp.Reset();
                                  return absl::OkStatus();
                                });
}

}  // namespace verbena::internal
