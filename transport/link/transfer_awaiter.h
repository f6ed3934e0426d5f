// TransferAwaiter: moves one payload and waits until that is done.
//
// co_await gives OK, UNAVAILABLE if the link is lost, CANCELLED or DEADLINE_EXCEEDED. In each case
// no device touches the local memory any more: a cancelled transfer posts nothing more, and waits
// for its WRs in the send queue. If the Task is destroyed nobody waits: the local memory is kept
// until the device is done with it. Lives in the waiting coroutine's frame.
//
//   absl::Status read = co_await TransferAwaiter(link, Transfer::Direction::kRead, {view}, source);

#ifndef VERBENA_TRANSPORT_LINK_TRANSFER_AWAITER_H_
#define VERBENA_TRANSPORT_LINK_TRANSFER_AWAITER_H_

#include <concepts>
#include <coroutine>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/transfer.h"

namespace verbena::internal {

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

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_TRANSFER_AWAITER_H_
