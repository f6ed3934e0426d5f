#include "verbena/transport/coro/context.h"

namespace verbena {

DeadlineScope::DeadlineScope(const TaskContext& context, TimePoint deadline)
    : scheduler_(*context.scheduler), scope_(context.cancel) {
  if (deadline == kNever || scope_.requested()) return;
  scope_.LimitDeadline(deadline);
  if (deadline <= scheduler_.now()) {
    scope_.Request(absl::StatusCode::kDeadlineExceeded);
    return;
  }
  scheduler_.StartTimer(*this, deadline);
  running_ = true;
}

DeadlineScope::~DeadlineScope() {
  if (running_) scheduler_.StopTimer(*this);
}

void DeadlineScope::OnTimer() {
  running_ = false;
  scope_.Request(absl::StatusCode::kDeadlineExceeded);
}

}  // namespace verbena
