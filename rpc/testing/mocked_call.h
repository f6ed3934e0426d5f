// MockedCall: the answer of a generated mock to a call, and InvokeTask() for answers that await.
//
// A mock's function gives a MockedCall<Result>, where Result is absl::StatusOr<Reply>. Actions
// return a reply, a Status, or a Result, as with any mock. The mock's Task then ends at once with
// it. A call without an action ends with UNIMPLEMENTED.
//
//   EXPECT_CALL(mock, Stat).WillOnce(Return(reply)).WillOnce(Return(absl::NotFoundError("none")));
//
// An action that awaits is a coroutine behind InvokeTask(). The request and the options are
// references that live until the coroutine has ended:
//
//   EXPECT_CALL(mock, Stat).WillOnce(InvokeTask(
//       [](const StatRequest&, CallOptions&) -> Task<absl::StatusOr<StatReply>> {
//         VERBENA_CO_RETURN_IF_ERROR(co_await Sleep(1ms));
//         co_return StatReply();
//       }));

#ifndef VERBENA_RPC_TESTING_MOCKED_CALL_H_
#define VERBENA_RPC_TESTING_MOCKED_CALL_H_

#include <concepts>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

namespace internal {

// How a mocked call without an action ends.
inline absl::Status NoMockAction() {
  return absl::UnimplementedError("the mock has no action for this call");
}

}  // namespace internal

namespace testing {

// Copyable if `Result` is, as GoogleMock's Return() needs. Only one of the copies is awaited, once.
template <typename Result>
class MockedCall {
 public:
  using value_type = Result;

  // For a call whose mock has no action. A result that is no Status is a default one.
  MockedCall() {
    if constexpr (std::is_convertible_v<absl::Status, Result>) {
      result_ = internal::NoMockAction();
    } else {
      result_.emplace();
    }
  }
  template <typename T>
    requires(std::convertible_to<T, Result> && !std::same_as<std::remove_cvref_t<T>, MockedCall>)
  MockedCall(T&& result)  // NOLINT(google-explicit-constructor)
      : result_(std::forward<T>(result)) {}
  explicit MockedCall(Task<Result> task) : task_(std::make_shared<Task<Result>>(std::move(task))) {}

  // For the mock, whose Task awaits it.
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<Result> AsTask() && {
    return RunAnswer(std::move(*this));
  }

 private:
  static Task<Result> RunAnswer(MockedCall call) {
    if (call.task_ != nullptr) co_return co_await std::move(*call.task_);
    co_return *std::move(call.result_);
  }

  std::optional<Result> result_;
  std::shared_ptr<Task<Result>> task_;  // shared for copies alone
};

}  // namespace testing

namespace internal {

template <typename Function>
class InvokeTaskAction {
 public:
  explicit InvokeTaskAction(Function function)
      : function_(std::make_shared<Function>(std::move(function))) {}

  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) const {
    using Result = typename std::invoke_result_t<Function&, Arguments...>::value_type;
    return testing::MockedCall<Result>(RunFunction<Result>(function_, arguments...));
  }

 private:
  // Keeps the callable, since a mock may forget its actions while a call runs. The arguments live
  // in the frame of the mock's Task.
  template <typename Result, typename... Arguments>
  static Task<Result> RunFunction(std::shared_ptr<Function> function, Arguments&... arguments) {
    co_return co_await (*function)(arguments...);
  }

  std::shared_ptr<Function> function_;
};

}  // namespace internal

namespace testing {

// An action that runs `function`, a coroutine that takes the mock's arguments and returns a
// Task<Result>.
template <typename Function>
auto InvokeTask(Function function) {
  return internal::InvokeTaskAction<Function>(std::move(function));
}

}  // namespace testing
}  // namespace verbena

#endif  // VERBENA_RPC_TESTING_MOCKED_CALL_H_
