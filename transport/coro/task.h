// Task<T>: a coroutine that runs when it is awaited.
//
// Lazy, move-only, one owner. Awaiting a Task runs it by symmetric transfer, on the scheduler and
// in the cancel scope of whoever awaits it, so chains of any length use no stack. Destroying a
// suspended Task on its scheduler's thread abandons it: its children are destroyed and its awaits
// detach. That recurses, once per await in the chain: 10,000 fit a thread's usual 8 MiB. An
// exception thrown inside comes out of the co_await (Verbena itself throws none). A Task may await
// anything. If a foreign awaitable resumes it on another thread, it goes on where it belongs, on
// its scheduler's thread (foreign_await.h).
//
// Locals may be over-aligned (alignas(64)): clang aligns frames as they need if it is given
// -fcoro-aligned-allocation. No coroutine that returns a Task compiles without that option.
//
// gcc before 13 miscompiles coroutines (double destruction of temporaries in a co_await operand),
// so it is refused here. Arguments by reference must outlive the Task; clang warns when a temporary
// cannot.
//
//   Task<absl::Status> Copy(Stub& from, Stub& to) {
//     absl::StatusOr<GetReply> value = co_await from.Get(request);
//     if (!value.ok()) co_return value.status();
//     …
//   }

#ifndef VERBENA_TRANSPORT_CORO_TASK_H_
#define VERBENA_TRANSPORT_CORO_TASK_H_

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
#error "Verbena needs clang 17 or newer, or gcc 13 or newer: older gcc miscompiles coroutines."
#endif

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/foreign_await.h"
#include "verbena/transport/coro/frame_pool.h"
#include "verbena/transport/coro/scheduler.h"

// A function that returns a Task without being a coroutine is a VERBENA_CORO_WRAPPER; one that
// takes over its arguments (and moves them into a coroutine) is VERBENA_CORO_OWNS_ARGUMENTS too, so
// that clang does not warn of temporaries.
#if defined(__clang__)
#define VERBENA_CORO_TASK [[clang::coro_return_type]] [[clang::coro_lifetimebound]]
#define VERBENA_CORO_WRAPPER [[clang::coro_wrapper]]
#define VERBENA_CORO_OWNS_ARGUMENTS [[clang::coro_disable_lifetimebound]]
#else
#define VERBENA_CORO_TASK
#define VERBENA_CORO_WRAPPER
#define VERBENA_CORO_OWNS_ARGUMENTS
#endif

namespace verbena {

template <typename T>
class Task;

namespace internal {

// Hears that a Task which nobody awaits has ended (a scope, a server call, a thread in BlockOn).
// The Task is suspended for the last time and may be destroyed inside.
class TaskListener {
 public:
  virtual ~TaskListener() = default;
  virtual void OnTaskDone() = 0;
};

// The common part of every Task's promise: its scheduler, its cancel scope, and the coroutine or
// the TaskListener that hears of its end.
class PromiseBase : public ReadyNode {
 public:
  Scheduler* scheduler = nullptr;
  CancelScope* cancel = nullptr;
  std::coroutine_handle<> continuation;
  TaskListener* completion = nullptr;

  // clang asks for a frame with its alignment, a constant.
  static void* operator new(size_t bytes, std::align_val_t alignment) {
    if (static_cast<size_t>(alignment) > kCoroutineFrameAlignment) {
      return AllocateAlignedFrame(bytes, static_cast<size_t>(alignment));
    }
    return AllocateFrame(bytes);
  }
  static void operator delete(void* frame, size_t bytes, std::align_val_t alignment) noexcept {
    if (static_cast<size_t>(alignment) > kCoroutineFrameAlignment) {
      FreeAlignedFrame(frame, bytes, static_cast<size_t>(alignment));
    } else {
      FreeFrame(frame, bytes);
    }
  }
#ifdef __clang__
  static void* operator new(size_t bytes) = delete;  // compile with -fcoro-aligned-allocation
#else
  static void* operator new(size_t bytes) { return AllocateFrame(bytes); }
  static void operator delete(void* frame, size_t bytes) noexcept { FreeFrame(frame, bytes); }
#endif

  std::suspend_always initial_suspend() const noexcept { return {}; }

  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    template <typename Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) const noexcept {
      PromiseBase& promise = ended.promise();
      if (promise.continuation) return promise.continuation;
      // The frame may be gone once OnTaskDone() returns.
      if (promise.completion != nullptr) promise.completion->OnTaskDone();
      return std::noop_coroutine();
    }
    void await_resume() const noexcept {}
  };
  FinalAwaiter final_suspend() const noexcept { return {}; }

  // Our own awaitables bring a Task back to its scheduler themselves.
  template <typename Awaitable>
  static Awaitable&& await_transform(Awaitable&& awaitable) noexcept {
    return static_cast<Awaitable&&>(awaitable);
  }
  template <ForeignAwaitable Awaitable>
  static ForeignAwaiter<Awaitable> await_transform(Awaitable&& awaitable) {
    return ForeignAwaiter<Awaitable>(std::forward<Awaitable>(awaitable));
  }

  void unhandled_exception() noexcept { exception_ = std::current_exception(); }

 protected:
  void RethrowIfFailed() {
    if (exception_) [[unlikely]]
      std::rethrow_exception(std::exchange(exception_, nullptr));
  }

 private:
  std::exception_ptr exception_;
};

template <typename T>
class Promise final : public PromiseBase {
 public:
  Task<T> get_return_object() noexcept;
  template <typename U = T>
    requires std::constructible_from<T, U&&>
  void return_value(U&& value) {
    result_.emplace(std::forward<U>(value));
  }
  T TakeResult() {
    RethrowIfFailed();
    VERBENA_CHECK(result_.has_value()) << "the result of a Task was taken before it ended";
    return *std::move(result_);
  }

 private:
  std::optional<T> result_;
};

template <>
class Promise<void> final : public PromiseBase {
 public:
  Task<void> get_return_object() noexcept;
  void return_void() const noexcept {}
  void TakeResult() { RethrowIfFailed(); }
};

}  // namespace internal

template <typename T = void>
class VERBENA_CORO_TASK [[nodiscard]] Task {
 public:
  using promise_type = internal::Promise<T>;
  using value_type = T;

  Task() = default;
  Task(Task&& other) noexcept : coroutine_(std::exchange(other.coroutine_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      Destroy();
      coroutine_ = std::exchange(other.coroutine_, nullptr);
    }
    return *this;
  }
  ~Task() { Destroy(); }

  // False when default-constructed or moved from.
  explicit operator bool() const { return coroutine_ != nullptr; }
  bool done() const { return coroutine_.done(); }

  class Awaiter {
   public:
    explicit Awaiter(std::coroutine_handle<promise_type> coroutine) : coroutine_(coroutine) {}
    bool await_ready() const noexcept { return false; }
    template <typename Parent>
      requires std::derived_from<Parent, internal::PromiseBase>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Parent> parent) const noexcept {
      ContinueWith(coroutine_.promise(), parent.promise());
      return coroutine_;
    }
    T await_resume() const { return coroutine_.promise().TakeResult(); }

   protected:
    std::coroutine_handle<promise_type> coroutine_;
  };
  // The Task must live until it ends, as a temporary in the co_await expression does.
  Awaiter operator co_await() && noexcept {
    VERBENA_CHECK(coroutine_ != nullptr) << "a Task was awaited that is empty or moved from";
    return Awaiter(coroutine_);
  }

  class ScopedAwaiter : private Awaiter {
   public:
    ScopedAwaiter(std::coroutine_handle<promise_type> coroutine, CancelScope* scope)
        : Awaiter(coroutine), scope_(scope) {}
    using Awaiter::await_ready;
    using Awaiter::await_resume;
    template <typename Parent>
      requires std::derived_from<Parent, internal::PromiseBase>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Parent> parent) const noexcept {
      std::coroutine_handle<> next = Awaiter::await_suspend(parent);
      this->coroutine_.promise().cancel = scope_;
      return next;
    }

   private:
    CancelScope* scope_;
  };
  // co_await std::move(task).In(scope): runs it in `scope` instead of the awaiting coroutine's.
  // With a null scope nobody can cancel it: for work that must still be done after a cancellation.
  ScopedAwaiter In(CancelScope* scope) && noexcept {
    VERBENA_CHECK(coroutine_ != nullptr) << "a Task was awaited that is empty or moved from";
    return ScopedAwaiter(coroutine_, scope);
  }

  // Runs the Task up to its first suspension, without a coroutine that awaits it: `completion`
  // hears when it ends (perhaps before this returns) and takes the result. Called once, on the
  // scheduler's thread.
  void Start(Scheduler& scheduler, CancelScope* cancel, internal::TaskListener* completion) {
    Bind(scheduler, cancel, completion);
    coroutine_.resume();
  }
  // The same, from the queue of ready coroutines: never inline.
  void StartLater(Scheduler& scheduler, CancelScope* cancel, internal::TaskListener* completion) {
    Bind(scheduler, cancel, completion);
    scheduler.Ready(coroutine_.promise());
  }

  // Runs the Task for `parent`, a suspended coroutine that goes on when the Task has ended and then
  // takes the result: for awaits that turn out to need a coroutine. Called once. Returns the
  // coroutine to resume.
  std::coroutine_handle<> RunFor(internal::PromiseBase& parent) {
    VERBENA_CHECK(coroutine_ != nullptr) << "a Task was started that is empty or moved from";
    ContinueWith(coroutine_.promise(), parent);
    return coroutine_;
  }
  // The same, from the queue of ready coroutines: never inline.
  void RunLaterFor(internal::PromiseBase& parent) {
    RunFor(parent);
    parent.scheduler->Ready(coroutine_.promise());
  }

  // The result of a Task that was started and is done; throws what it threw.
  T TakeResult() { return coroutine_.promise().TakeResult(); }

 private:
  friend promise_type;
  explicit Task(std::coroutine_handle<promise_type> coroutine) : coroutine_(coroutine) {}

  static void ContinueWith(internal::PromiseBase& child, internal::PromiseBase& parent) noexcept {
    child.continuation = parent.handle;
    child.scheduler = parent.scheduler;
    child.cancel = parent.cancel;
  }
  void Bind(Scheduler& scheduler, CancelScope* cancel, internal::TaskListener* completion) {
    VERBENA_CHECK(coroutine_ != nullptr) << "a Task was started that is empty or moved from";
    internal::PromiseBase& promise = coroutine_.promise();
    VERBENA_CHECK(promise.scheduler == nullptr) << "a Task was started twice";
    promise.scheduler = &scheduler;
    promise.cancel = cancel;
    promise.completion = completion;
  }
  void Destroy() {
    if (coroutine_) coroutine_.destroy();
  }

  std::coroutine_handle<promise_type> coroutine_;
};

namespace internal {

template <typename T>
inline constexpr bool kIsTask = false;
template <typename T>
inline constexpr bool kIsTask<Task<T>> = true;

// An awaitable that a Task can be made of, such as a stub's call: AsTask() returns that Task.
template <typename A>
concept TaskSource = !kIsTask<A> && requires(A awaitable) {
  { std::move(awaitable).AsTask() } -> std::same_as<Task<typename A::value_type>>;
};
template <typename A>
concept TaskOrSource = kIsTask<A> || TaskSource<A>;

template <typename T>
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<T> ToTask(Task<T>&& task) {
  return std::move(task);
}
template <TaskSource A>
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<typename A::value_type> ToTask(
    A&& awaitable) {
  return std::forward<A>(awaitable).AsTask();
}

template <typename T>
Task<T> Promise<T>::get_return_object() noexcept {
  auto self = std::coroutine_handle<Promise>::from_promise(*this);
  handle = self;
  return Task<T>(self);
}

inline Task<void> Promise<void>::get_return_object() noexcept {
  auto self = std::coroutine_handle<Promise>::from_promise(*this);
  handle = self;
  return Task<void>(self);
}

}  // namespace internal
}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_TASK_H_
