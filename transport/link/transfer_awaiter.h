// TransferAwaiter: moves one payload and waits until that is done.
//
// co_await gives OK, UNAVAILABLE when the link is lost, or CANCELLED or DEADLINE_EXCEEDED: then,
// and when the Task is destroyed, no more of it is posted; the local memory is kept until the
// device is done with it. Lives in the waiting coroutine's frame.
//
//   absl::Status read = co_await TransferAwaiter(link, Transfer::Direction::kRead, {view}, source);

#ifndef VERBENA_TRANSPORT_LINK_TRANSFER_AWAITER_H_
#define VERBENA_TRANSPORT_LINK_TRANSFER_AWAITER_H_

#include <concepts>
#include <coroutine>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/coro/suspension.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/transfer.h"

namespace verbena {

class [[nodiscard]] TransferAwaiter final : public Suspension, private TransferListener {
 public:
  // `link` is open(), `local` is as long as `remote`, and not empty.
  TransferAwaiter(Link& link, Transfer::Direction direction, const BufferView& local,
                  const RemoteRange& remote)
      : link_(link), direction_(direction), local_(local), remote_(remote) {}
  ~TransferAwaiter() override { Stop(); }

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    if (Cancelled(coroutine)) return false;
    Suspend(coroutine);
    transfer_ = &link_.StartTransfer(direction_, absl::MakeConstSpan(&local_, 1), remote_, this);
    return true;
  }
  absl::Status await_resume() {
    return cancel_status().ok() ? std::move(status_) : cancel_status();
  }

 private:
  void OnTransferDone(const absl::Status& status) override {
    transfer_ = nullptr;
    status_ = status;
    Resume();
  }
  void Detach() override { Stop(); }
  void Stop() {
    if (Transfer* transfer = std::exchange(transfer_, nullptr)) link_.StopTransfer(*transfer);
  }

  Link& link_;
  const Transfer::Direction direction_;
  const BufferView local_;
  const RemoteRange remote_;
  Transfer* transfer_ = nullptr;
  absl::Status status_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_LINK_TRANSFER_AWAITER_H_
