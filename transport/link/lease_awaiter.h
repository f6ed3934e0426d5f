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

#ifndef VERBENA_TRANSPORT_LINK_LEASE_AWAITER_H_
#define VERBENA_TRANSPORT_LINK_LEASE_AWAITER_H_

#include <concepts>
#include <coroutine>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/coro/suspension.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

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

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LEASE_AWAITER_H_
