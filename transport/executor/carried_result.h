// CarriedResult<T>: a Task's result on its way to another thread: a value, an exception, or the
// Status of a Task that could not run. Not for users.

#ifndef VERBENA_TRANSPORT_EXECUTOR_CARRIED_RESULT_H_
#define VERBENA_TRANSPORT_EXECUTOR_CARRIED_RESULT_H_

#include <concepts>
#include <cstdlib>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

template <typename T>
class CarriedResult {
 public:
  // `task` is done.
  void SetFrom(Task<T>& task) {
    try {
      if constexpr (std::is_void_v<T>) {
        task.TakeResult();
      } else {
        value_.emplace(task.TakeResult());
      }
    } catch (...) {
      exception_ = std::current_exception();
    }
  }

  // The Task could not run. If T cannot hold a Status, the process aborts.
  void SetFailed(const absl::Status& status) {
    if constexpr (std::convertible_to<absl::Status, T>) {
      value_.emplace(status);
    } else {
      Log(LogLevel::kError, status.ToString());
      std::abort();
    }
  }

  // Once, after one of the above.
  T Take() && {
    if (exception_) [[unlikely]]
      std::rethrow_exception(std::exchange(exception_, nullptr));
    if constexpr (!std::is_void_v<T>) return *std::move(value_);
  }

 private:
  struct Nothing {};
  std::optional<std::conditional_t<std::is_void_v<T>, Nothing, T>> value_;
  std::exception_ptr exception_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_CARRIED_RESULT_H_
