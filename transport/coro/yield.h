// Yield: lets every coroutine that is ready now run first.
//
// For loops that compute, which would otherwise hold the executor. Returns OK, or the reason when
// the coroutine's scope was cancelled; it yields in either case.
//
//   while (hasher.Step()) {
//     VERBENA_CO_RETURN_IF_ERROR(co_await Yield());
//   }

#ifndef VERBENA_TRANSPORT_CORO_YIELD_H_
#define VERBENA_TRANSPORT_CORO_YIELD_H_

#include <concepts>
#include <coroutine>

#include "absl/status/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

class [[nodiscard]] Yield {
 public:
  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, internal::PromiseBase>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    promise_ = &coroutine.promise();
    promise_->scheduler->Ready(*promise_);
  }
  absl::Status await_resume() const {
    return promise_->cancel == nullptr ? absl::OkStatus() : promise_->cancel->status();
  }

 private:
  internal::PromiseBase* promise_ = nullptr;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_YIELD_H_
