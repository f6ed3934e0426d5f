// Awaits of one-sided operations: TransferAwaiter for a payload, AtomicAwaiter for an atomic
// operation, and LeaseAwaiter for room to open leases.
//
// Each lives in the waiting coroutine's frame, on the thread of the link's executor, and ends at
// the latest when the link is lost or the coroutine is cancelled.

#ifndef VERBENA_TRANSPORT_LINK_ONE_SIDED_AWAITS_H_
#define VERBENA_TRANSPORT_LINK_ONE_SIDED_AWAITS_H_

#include <concepts>
#include <coroutine>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// TransferAwaiter: moves one payload and waits until that is done.
//
// co_await gives OK, UNAVAILABLE if the link is lost, CANCELLED or DEADLINE_EXCEEDED. In each case
// no device touches the local memory any more: a cancelled transfer posts nothing more, and waits
// for its WRs in the send queue. If the Task is destroyed nobody waits: the local memory is kept
// until the device is done with it. Lives in the waiting coroutine's frame.
//
//   absl::Status read = co_await TransferAwaiter(link, Transfer::Direction::kRead, {view}, source);
class [[nodiscard]] TransferAwaiter final : private CancelNode, private TransferListener {
 public:
  // `link` is open(), `local` is as long as `remote`, and not empty.
  TransferAwaiter(Link& link, Transfer::Direction direction, const BufferView& local,
                  const RemoteRange& remote)
      : link_(link), direction_(direction), local_(local), remote_(remote) {}
  TransferAwaiter(const TransferAwaiter&) = delete;
  TransferAwaiter& operator=(const TransferAwaiter&) = delete;
  ~TransferAwaiter() override {
    if (transfer_ != nullptr) link_.AbandonTransfer(*transfer_);
  }

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    promise_ = &coroutine.promise();
    if (CancelScope* cancel = promise_->cancel; cancel != nullptr) {
      if (cancel->requested()) {
        status_ = cancel->status();
        return false;
      }
      cancel->Add(*this);
    }
    transfer_ = &link_.StartTransfer(direction_, absl::MakeConstSpan(&local_, 1), remote_, this);
    return true;
  }
  absl::Status await_resume() { return std::move(status_); }

 private:
  void OnCancel(absl::StatusCode reason) override {
    // The transfer may have ended, with the coroutine queued.
    if (transfer_ == nullptr) return;
    status_ = CancelStatus(reason);
    if (link_.CancelTransfer(*transfer_)) return;
    Resume();
  }
  void OnTransferDone(const absl::Status& status) override {
    if (status_.ok()) status_ = status;
    Resume();
  }
  void Resume() {
    transfer_ = nullptr;
    CancelNode::Unlink();
    promise_->scheduler->Ready(*promise_);
  }

  Link& link_;
  const Transfer::Direction direction_;
  const BufferView local_;
  const RemoteRange remote_;
  PromiseBase* promise_ = nullptr;
  Transfer* transfer_ = nullptr;
  absl::Status status_;
};

// AtomicAwaiter: does one atomic operation on the peer's memory, and returns the former value.
//
// co_await gives the former value, or UNAVAILABLE if the link is lost, CANCELLED or
// DEADLINE_EXCEEDED. After an error, or if the Task is destroyed, the operation may have been done
// or not. Lives in the waiting coroutine's frame, into which no device writes.
//
//   absl::StatusOr<uint64_t> before = co_await AtomicAwaiter(link, {.operand = 1}, counter);
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

// LeaseAwaiter: waits until a link can open some leases at once.
//
// co_await gives OK, CANCELLED or DEADLINE_EXCEEDED, or UNAVAILABLE if the link is lost. After any
// wait the coroutine must ask anew which link there is. First come, first served. Lives in the
// waiting coroutine's frame, which may be destroyed at any time.
//
//   while (link->free_leases() < 2) {
//     VERBENA_CO_RETURN_IF_ERROR(co_await LeaseAwaiter(*link, 2));
//     link = …;
//   }
class [[nodiscard]] LeaseAwaiter final : public Suspension, private LeaseWaiter {
 public:
  LeaseAwaiter(Link& link, uint32_t count) : link_(link) { leases_wanted = count; }

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    if (Cancelled(coroutine)) {
      status_ = cancel_status();
      return false;
    }
    if (link_.free_leases() >= leases_wanted) return false;
    Suspend(coroutine);
    link_.AwaitLeases(*this);
    return true;
  }
  absl::Status await_resume() {
    return cancel_status().ok() ? std::move(status_) : cancel_status();
  }

 private:
  void OnLeasesFree() override { Resume(); }
  void OnLinkLost() override {
    status_ = absl::UnavailableError("the link was lost");
    Resume();
  }
  void Detach() override { LeaseWaiter::Unlink(); }

  Link& link_;
  absl::Status status_;
};

// CheckLocalMemory: whether a link's device can move memory of ours that a user chose.
//
// As CheckRegistered(), and INVALID_ARGUMENT when `view` is not registered to be a WRITE's source
// (kWrite), or to be filled by a READ (kRead).
absl::Status CheckLocalMemory(const Link& link, Transfer::Direction direction,
                              const BufferView& view);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_ONE_SIDED_AWAITS_H_
