#include "verbena/transport/coro/cancel.h"

#include "verbena/transport/coro/task.h"

namespace verbena {

namespace internal {

absl::Status CancelStatus(absl::StatusCode reason) {
  switch (reason) {
    case absl::StatusCode::kOk:
      return absl::OkStatus();
    case absl::StatusCode::kDeadlineExceeded:
      return absl::DeadlineExceededError("deadline exceeded");
    default:
      return absl::Status(reason, "cancelled");
  }
}

}  // namespace internal

CancelScope::CancelScope(CancelScope* parent) {
  if (parent == nullptr) return;
  deadline_ = parent->deadline_;
  trace_ = parent->trace_;
  whose_ = parent->whose_;
  has_owner_ = parent->has_owner_;
  if (parent->requested()) {
    reason_ = parent->reason();
  } else {
    parent->Add(*this);
  }
}

void CancelScope::Request(absl::StatusCode reason) {
  VERBENA_CHECK(reason != absl::StatusCode::kOk) << "a request to stop needs a reason";
  if (requested()) return;
  reason_ = reason;
  // A node may unlink others, or destroy them, while it hears the request: always take the first.
  while (internal::CancelNode* node = nodes_.PopFront()) node->OnCancel(reason);
}

uint64_t CancelScope::ClientOfOwner() const { return owner()->client(); }

absl::Status CancelScope::status() const { return internal::CancelStatus(reason_); }

}  // namespace verbena
