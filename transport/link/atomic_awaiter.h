// AtomicAwaiter: does one atomic operation on the peer's memory, and returns the former value.
//
// co_await gives the former value, or UNAVAILABLE if the link is lost, CANCELLED or
// DEADLINE_EXCEEDED. After an error, or if the Task is destroyed, the operation may have been done
// or not. Lives in the waiting coroutine's frame, into which no device writes.
//
//   absl::StatusOr<uint64_t> before = co_await AtomicAwaiter(link, {.operand = 1}, counter);

#ifndef VERBENA_TRANSPORT_LINK_ATOMIC_AWAITER_H_
#define VERBENA_TRANSPORT_LINK_ATOMIC_AWAITER_H_

#include <concepts>
#include <coroutine>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/coro/suspension.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/transfer.h"

namespace verbena::internal {

class [[nodiscard]] AtomicAwaiter final : public Suspension, private TransferListener {
 public:
  // `link` is open() and has atomics; `remote` is 8 bytes, at a multiple of 8.
  AtomicAwaiter(Link& link, const AtomicOperation& operation, const RemoteRange& remote)
      : link_(link), operation_(operation), remote_(remote) {}
  ~AtomicAwaiter() override { Stop(); }

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    if (Cancelled(coroutine)) return false;
    Suspend(coroutine);
    transfer_ = &link_.StartAtomic(operation_, remote_, this);
    return true;
  }
  absl::StatusOr<uint64_t> await_resume() {
    VERBENA_RETURN_IF_ERROR(cancel_status());
    VERBENA_RETURN_IF_ERROR(status_);
    return before_;
  }

 private:
  void OnAtomicResult(uint64_t before) override { before_ = before; }
  void OnTransferDone(const absl::Status& status) override {
    transfer_ = nullptr;
    status_ = status;
    Resume();
  }
  void Detach() override { Stop(); }
  void Stop() {
    if (Transfer* transfer = std::exchange(transfer_, nullptr)) link_.AbandonTransfer(*transfer);
  }

  Link& link_;
  const AtomicOperation operation_;
  const RemoteRange remote_;
  Transfer* transfer_ = nullptr;
  uint64_t before_ = 0;
  absl::Status status_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_ATOMIC_AWAITER_H_
