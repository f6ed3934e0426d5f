// AnyHandler: any callable that returns a Task<absl::Status>, as std::function holds other
// callables. (clang refuses std::function here, since its functions return Tasks and are no
// coroutines.)

#ifndef VERBENA_TESTS_SUPPORT_ANY_HANDLER_H_
#define VERBENA_TESTS_SUPPORT_ANY_HANDLER_H_

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

template <typename... Arguments>
class AnyHandler {
 public:
  AnyHandler() = default;
  template <typename Function>
    requires(!std::same_as<std::remove_cvref_t<Function>, AnyHandler>)
  AnyHandler(Function function)  // NOLINT(google-explicit-constructor)
      : held_(std::make_shared<HeldOf<Function>>(std::move(function))) {}

  explicit operator bool() const { return held_ != nullptr; }
  VERBENA_CORO_WRAPPER Task<absl::Status> operator()(Arguments... arguments) const {
    return held_->Call(std::forward<Arguments>(arguments)...);
  }

 private:
  struct Held {
    virtual ~Held() = default;
    virtual Task<absl::Status> Call(Arguments... arguments) = 0;
  };
  template <typename Function>
  struct HeldOf final : Held {
    explicit HeldOf(Function given) : function(std::move(given)) {}
    VERBENA_CORO_WRAPPER Task<absl::Status> Call(Arguments... arguments) override {
      return function(std::forward<Arguments>(arguments)...);
    }
    Function function;
  };

  std::shared_ptr<Held> held_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_SUPPORT_ANY_HANDLER_H_
