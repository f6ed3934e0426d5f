// Task<T>: a coroutine that runs when it is awaited.
//
// Lazy, move-only, one owner. Awaiting a Task runs it by symmetric transfer, on the scheduler and
// in the cancel scope of whoever awaits it, so chains of any length use no stack. Destroying a
// suspended Task on its scheduler's thread abandons it: its children are destroyed and its awaits
// detach. That recurses, once per await in the chain: 10,000 fit a thread's usual 8 MiB. An
// exception thrown inside comes out of the co_await (Verbena itself throws none). A Task may await
// anything. If a foreign awaitable resumes it on another thread, it goes on where it belongs, on
// its scheduler's thread (ForeignAwaiter).
//
// Locals may be over-aligned (alignas(64)): clang aligns frames as they need if it is given
// -fcoro-aligned-allocation. Without that option no coroutine that returns a Task compiles. gcc
// aligns frames to 16 bytes: it refuses over-aligned parameters and results, and silently
// misaligns over-aligned locals.
//
// Where gcc makes no tail calls (VERBENA_TAIL_CALLS in scheduler.h), a coroutine that suspends says
// which one is next, and who resumed it resumes that one: nothing runs between, and chains use no
// stack either. If the library makes tail calls, and a program does not, some of the program's
// Tasks run first in the scheduler's queue instead.
//
// Arguments by reference must outlive the Task; clang warns when a temporary cannot.
//
//   Task<absl::Status> Copy(Stub& from, Stub& to) {
//     absl::StatusOr<GetReply> value = co_await from.Get(request);
//     if (!value.ok()) co_return value.status();
//     …
//   }
//
//   precondition                                    how it is checked   test
//   awaited or started once                         a check aborts      task_test
//   not empty when it is awaited, started, asked    a check aborts      task_test
//   TakeResult() once it has ended                  a check aborts      task_test
//   destroyed on its scheduler's thread             not checked
//   arguments by reference outlive it               clang warns         lifetime_warnings

#ifndef VERBENA_TRANSPORT_CORO_TASK_H_
#define VERBENA_TRANSPORT_CORO_TASK_H_

#include "verbena/transport/base/compiler.h"  // IWYU pragma: keep

#include <atomic>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/coro/cancel.h"
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

namespace verbena::internal {

// The way home of one foreign await. Shared by the awaiter and the bridge; the last deletes it.
class VERBENA_EXPORT ForeignReturn final : private InboxItem {
 public:
  ForeignReturn(Scheduler& home, ReadyNode& waiting) : home_(home), waiting_(&waiting) {}

  // From any thread, once: the bridge was resumed. Drops the bridge's reference.
  void Arrive();
  // From any thread, instead of Arrive(): the bridge is destroyed and was never resumed.
  void Drop();
  // On the home's thread: the awaiter is gone. Drops its reference.
  void Leave();

 private:
  enum class State {
    kWaiting,
    kReturning,  // the bridge is posting to the home, which must not vanish
    kReturned,
    kLeft,  // the awaiter is gone: nothing may be posted to the home
  };

  // On the home's thread.
  void Run() override;

  Scheduler& home_;
  ReadyNode* waiting_;  // the home's thread; null once the awaiter is gone
  std::atomic<State> state_{State::kWaiting};
  std::atomic<int> references_{2};
};

// A coroutine whose handle a foreign awaitable resumes. It destroys itself after that.
VERBENA_EXPORT std::coroutine_handle<> MakeForeignBridge(ForeignReturn& way_home);

template <typename Awaitable>
decltype(auto) GetAwaiter(Awaitable&& awaitable) {
  if constexpr (requires { std::forward<Awaitable>(awaitable).operator co_await(); }) {
    return std::forward<Awaitable>(awaitable).operator co_await();
  } else if constexpr (requires { operator co_await(std::forward<Awaitable>(awaitable)); }) {
    return operator co_await(std::forward<Awaitable>(awaitable));
  } else {
    return std::forward<Awaitable>(awaitable);
  }
}

// An awaitable that takes any coroutine's handle. Verbena's own awaitables take those of Tasks
// alone.
template <typename Awaitable>
concept ForeignAwaitable = requires(Awaitable&& awaitable, std::coroutine_handle<> any) {
  GetAwaiter(std::forward<Awaitable>(awaitable)).await_suspend(any);
};

// ForeignAwaiter: brings a Task back to its scheduler after it awaited something that is not ours.
//
// Our own awaits resume a Task through its scheduler. A foreign awaitable (of another library, or
// of the application) resumes the handle that it was given, on whatever thread it likes. So it is
// given the handle of a bridge: a small coroutine that, when resumed, posts the Task to its
// scheduler. A foreign await costs two allocations. It cannot be cancelled. If the Task is
// destroyed while it waits, the foreign side may still resume or destroy its handle later, which
// then does nothing; a handle that it never touches again leaks about 200 bytes.
//
// Task's promise applies this by itself (await_transform), so nobody names it.
template <typename Awaitable, bool kTailCalls>
class ForeignAwaiter final {
 public:
  explicit ForeignAwaiter(Awaitable&& awaitable)
      : awaiter_(GetAwaiter(std::forward<Awaitable>(awaitable))) {}
  ForeignAwaiter(const ForeignAwaiter&) = delete;
  ForeignAwaiter& operator=(const ForeignAwaiter&) = delete;
  ~ForeignAwaiter() {
    if (way_home_ != nullptr) way_home_->Leave();
  }

  bool await_ready() { return awaiter_.await_ready(); }
  // Returns the handle to go on with.
  template <typename Promise>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> coroutine) {
    Promise& promise = coroutine.promise();
    way_home_ = new ForeignReturn(*promise.scheduler, promise);
    // From here on the bridge may be resumed on any thread. This object lives on at least until
    // this thread returns to its loop.
    const std::coroutine_handle<> bridge = MakeForeignBridge(*way_home_);
    using Suspended = decltype(awaiter_.await_suspend(bridge));
    try {
      if constexpr (std::same_as<Suspended, bool>) {
        if (awaiter_.await_suspend(bridge)) return std::noop_coroutine();
      } else if constexpr (std::is_void_v<Suspended>) {
        awaiter_.await_suspend(bridge);
        return std::noop_coroutine();
      } else {
        return awaiter_.await_suspend(bridge);
      }
    } catch (...) {
      // The coroutine goes on with the exception, and nobody resumes the bridge.
      bridge.destroy();
      throw;
    }
    bridge.destroy();
    if constexpr (kTailCalls) return coroutine;
    promise.scheduler->HandOver(promise);
    return std::noop_coroutine();
  }
  decltype(auto) await_resume() { return awaiter_.await_resume(); }

 private:
  // A reference if the awaitable is its own awaiter: it lives until the await has ended.
  decltype(GetAwaiter(std::declval<Awaitable>())) awaiter_;
  ForeignReturn* way_home_ = nullptr;
};

#if !defined(__clang__)
// OwnAwaiter: the await of one of our own awaitables in a coroutine that gcc compiles, which would
// copy what await_transform() returns by reference. Lives in the coroutine's frame.
template <typename Awaitable, bool kTailCalls>
class OwnAwaiter final {
 public:
  explicit OwnAwaiter(Awaitable&& awaitable)
      : awaiter_(GetAwaiter(std::forward<Awaitable>(awaitable))) {}
  OwnAwaiter(const OwnAwaiter&) = delete;
  OwnAwaiter& operator=(const OwnAwaiter&) = delete;

  bool await_ready() { return awaiter_.await_ready(); }
  template <typename Promise>
  auto await_suspend(std::coroutine_handle<Promise> coroutine) {
    using Suspended = decltype(awaiter_.await_suspend(coroutine));
    if constexpr (kTailCalls || std::is_void_v<Suspended> || std::same_as<Suspended, bool>) {
      return awaiter_.await_suspend(coroutine);
    } else {
      // To whatever is next, be it nothing.
      next_.handle = awaiter_.await_suspend(coroutine);
      coroutine.promise().scheduler->HandOver(next_);
    }
  }
  decltype(auto) await_resume() { return awaiter_.await_resume(); }

 private:
  struct Nothing {};

  // As in ForeignAwaiter.
  decltype(GetAwaiter(std::declval<Awaitable>())) awaiter_;
  // Destroyed with the coroutine, it leaves the queue.
  [[no_unique_address]] std::conditional_t<kTailCalls, Nothing, ReadyNode> next_;
};
#endif

}  // namespace verbena::internal

namespace verbena {

template <typename T>
class Task;

}  // namespace verbena

namespace verbena::internal {

// Hears that a Task which nobody awaits has ended (a scope, a server call, a thread in BlockOn).
// The Task is suspended for the last time and may be destroyed inside.
class TaskListener {
 public:
  virtual ~TaskListener() = default;
  virtual void OnTaskDone() = 0;
};

// WorkOwner: who runs a Task for somebody else, and is not done with it before all changes of files
// have ended that the Task has begun: a call of a server.
//
// An await that is cancelled or destroyed returns at once, though the kernel may still write to its
// file. The owner hears of that through the scope that the await was made in (CancelScope::owner),
// on that scope's thread.
class WorkOwner : public TaskListener {
 public:
  // A number that equals no other client's.
  virtual uint64_t client() const = 0;
  // A change of a file goes on that nobody waits for any more.
  virtual void OnChangeLeft() = 0;
  // It has ended. Called once for each OnChangeLeft().
  virtual void OnLeftChangeEnded() = 0;
};

#if !defined(__clang__)
// The end of a coroutine that gcc compiles. gcc 15.2 touches a frame that is destroyed inside its
// own await_suspend() (gcc PR 121961), as OnTaskDone() may do. So the coroutine hands over to what
// looks like one more coroutine, whose only step is to call OnTaskDone(). Lives in the frame of the
// coroutine that has ended.
template <bool kTailCalls>
class GccFinalAwaiter final {
 public:
  bool await_ready() const noexcept { return false; }
  template <typename Promise>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) noexcept {
    Promise& promise = ended.promise();
    if (promise.continuation) {
      if constexpr (kTailCalls) return promise.continuation;
      promise.handle = promise.continuation;
      promise.scheduler->HandOver(promise);
    } else if (promise.completion != nullptr) {
      listener_ = promise.completion;
      return std::coroutine_handle<>::from_address(this);
    }
    return std::noop_coroutine();
  }
  void await_resume() const noexcept {}

 private:
  static void Tell(void* awaiter) {
    // The frame, and this awaiter in it, may be gone once OnTaskDone() returns.
    static_cast<GccFinalAwaiter*>(awaiter)->listener_->OnTaskDone();
  }

  // First, as in every frame: what resumes it. Nobody destroys it by its handle, or asks it more.
  void (*const resume_)(void*) = &Tell;
  TaskListener* listener_ = nullptr;
};
#endif

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
  // clang takes these two only without the option, and then says so for each coroutine.
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wgcc-compat"
  static void* operator new(size_t bytes)
      __attribute__((diagnose_if(true || bytes, "Verbena needs -fcoro-aligned-allocation",
                                 "error")));
#pragma clang diagnostic pop
  static void operator delete(void* frame, size_t bytes) noexcept;
#else
  static void* operator new(size_t bytes) { return AllocateFrame(bytes); }
  static void operator delete(void* frame, size_t bytes) noexcept { FreeFrame(frame, bytes); }
#endif

  std::suspend_always initial_suspend() const noexcept { return {}; }

#if defined(__clang__)
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
#else
  // A template, for a name of its own: clang's returns another class, and both may be linked into
  // one program.
  template <typename FinalAwaiter = GccFinalAwaiter<VERBENA_TAIL_CALLS>>
  FinalAwaiter final_suspend() const noexcept {
    return {};
  }
#endif

  // Our own awaitables bring a Task back to its scheduler themselves.
#if defined(__clang__)
  template <typename Awaitable>
  static Awaitable&& await_transform(Awaitable&& awaitable) noexcept {
    return static_cast<Awaitable&&>(awaitable);
  }
#else
  template <typename Awaitable>
  static OwnAwaiter<Awaitable, VERBENA_TAIL_CALLS> await_transform(Awaitable&& awaitable) {
    return OwnAwaiter<Awaitable, VERBENA_TAIL_CALLS>(std::forward<Awaitable>(awaitable));
  }
#endif
  template <ForeignAwaitable Awaitable>
  static ForeignAwaiter<Awaitable, VERBENA_TAIL_CALLS> await_transform(Awaitable&& awaitable) {
    return ForeignAwaiter<Awaitable, VERBENA_TAIL_CALLS>(std::forward<Awaitable>(awaitable));
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
#if !defined(__clang__)
  static_assert(alignof(T) <= kCoroutineFrameAlignment,
                "gcc aligns coroutines to 16 bytes: return an over-aligned result in another way, "
                "or compile with clang");
#endif

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

#if !defined(__clang__)
// The promise of a coroutine that gcc compiles, whose parameters are copied into its frame.
template <typename Promise, typename... Parameters>
struct GccCoroutineTraits {
  static_assert(((std::is_reference_v<Parameters> ||
                  alignof(std::conditional_t<std::is_reference_v<Parameters>, char, Parameters>) <=
                      kCoroutineFrameAlignment) &&
                 ...),
                "gcc aligns coroutines to 16 bytes: take over-aligned parameters by reference, or "
                "compile with clang");
  using promise_type = Promise;
};
#endif

}  // namespace verbena::internal

#if !defined(__clang__)
template <typename T, typename... Parameters>
struct std::coroutine_traits<verbena::Task<T>, Parameters...>
    : verbena::internal::GccCoroutineTraits<verbena::internal::Promise<T>, Parameters...> {};
#endif

namespace verbena {

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
  bool done() const {
    VERBENA_CHECK(coroutine_ != nullptr) << "an empty Task neither runs nor ends";
    return coroutine_.done();
  }

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
    if constexpr (VERBENA_TAIL_CALLS) {
      coroutine_.resume();
    } else {
      scheduler.ResumeAll(coroutine_);
    }
  }
  // Starts the Task as Start() does, but from the queue of ready coroutines, never inline.
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
  // Runs the Task as RunFor() does, but from the queue of ready coroutines, never inline.
  void RunLaterFor(internal::PromiseBase& parent) {
    RunFor(parent);
    parent.scheduler->Ready(coroutine_.promise());
  }

  // The result of a Task that was started and is done. Throws the Task's exception if there is one.
  T TakeResult() {
    VERBENA_CHECK(done()) << "the result of a Task was taken before it ended";
    return coroutine_.promise().TakeResult();
  }

 private:
  friend promise_type;
  explicit Task(std::coroutine_handle<promise_type> coroutine) : coroutine_(coroutine) {}

  static void ContinueWith(internal::PromiseBase& child, internal::PromiseBase& parent) noexcept {
    VERBENA_CHECK(child.scheduler == nullptr)
        << "a Task was awaited or started twice: it runs once, so make another one";
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

}  // namespace verbena

namespace verbena::internal {

template <typename T>
inline constexpr bool kIsTask = false;
template <typename T>
inline constexpr bool kIsTask<Task<T>> = true;

// AwaitParts: what one of our own awaits is made of, such as the Queue of its Pop().
//
// An await stays where it was made, since others point to it. A coroutine that begins later gets
// its parts, and makes it anew. The await gives them by Parts(), before it begins.
template <typename A, typename... Parts>
class AwaitParts {
 public:
  using Await = A;

  explicit AwaitParts(Parts... parts) : parts_(std::forward<Parts>(parts)...) {}

  // Once.
  A& MakeIn(std::optional<A>& place) && {
    return std::apply(
        [&place](auto&&... parts) -> A& {
          return place.emplace(std::forward<decltype(parts)>(parts)...);
        },
        std::move(parts_));
  }

 private:
  std::tuple<Parts...> parts_;
};

// Calls Parts(), which no user sees.
class PartsAccess {
 public:
  template <typename A>
  static auto Of(A&& await) -> decltype(std::forward<A>(await).Parts()) {
    return std::forward<A>(await).Parts();
  }
};

template <typename A>
concept OwnAwait = requires(A await) {
  typename A::value_type;
  PartsAccess::Of(std::move(await));
};

// An awaitable that a Task can be made of: a stub's call, whose AsTask() returns that Task, or one
// of our own awaits, such as Queue::Pop().
template <typename A>
concept TaskSource = !kIsTask<A> && (OwnAwait<A> || requires(A awaitable) {
  { std::move(awaitable).AsTask() } -> std::same_as<Task<typename A::value_type>>;
});
template <typename A>
concept TaskOrSource = kIsTask<A> || TaskSource<A>;
// One that refers to variables of whoever made it, such as a stub's call of an lvalue request: only
// for those who wait for its end.
template <typename A>
concept BorrowingSource = TaskSource<A> && A::kBorrows;

template <typename Parts>
Task<typename Parts::Await::value_type> RunAwait(Parts parts) {
  std::optional<typename Parts::Await> await;
  co_return co_await std::move(parts).MakeIn(await);
}

// The Task that `awaitable` is or becomes. It takes over the awaitable, which must be an rvalue.
template <typename A>
  requires TaskOrSource<std::remove_cvref_t<A>>
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<typename std::remove_cvref_t<A>::value_type>
ToTask(A&& awaitable) {
  if constexpr (std::is_lvalue_reference_v<A>) {
    static_assert(!std::is_lvalue_reference_v<A>,
                  "what WhenAll, WhenAny, WithDeadline and the like wait for becomes theirs: write "
                  "the call as the argument, such as queue.Pop(), or std::move() a variable");
  } else if constexpr (kIsTask<std::remove_cvref_t<A>>) {
    return std::forward<A>(awaitable);
  } else if constexpr (OwnAwait<std::remove_cvref_t<A>>) {
    return RunAwait(PartsAccess::Of(std::forward<A>(awaitable)));
  } else {
    return std::forward<A>(awaitable).AsTask();
  }
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

// TaskFunction: a callable that returns a Task, or an awaitable that a Task can be made of. A
// lambda that is a coroutine is one; one that returns a stub's call is another.
//
// A coroutine does not keep the lambda that it was made by: its captures die with the lambda.
// RunFunction() keeps the callable until the Task has ended and its frame is destroyed.
//
//   scope.Spawn(RunFunction([&channel, name]() -> Task<void> { … }));
template <typename Function, typename... Arguments>
concept TaskFunction = std::invocable<Function&, Arguments...> &&
                       TaskOrSource<std::invoke_result_t<Function&, Arguments...>>;

// The type of the result of a TaskFunction's Task.
template <typename Function, typename... Arguments>
using TaskFunctionResult = typename std::invoke_result_t<Function&, Arguments...>::value_type;

// The callable is called when the Task that this returns is run.
template <TaskFunction Function>
Task<TaskFunctionResult<Function>> RunFunction(Function function) {
  co_return co_await function();
}

// Suspension: the part that all leaf awaits share, namely how a coroutine stops, hears of
// cancellation and is queued again.
//
// An awaiter derives from it. It lives in the awaiting coroutine's frame, so destroying the Task
// destroys it: a derived destructor takes it off whatever it waits on. One thread.
//
//   class SleepAwaiter : Suspension, Timer {
//     bool await_ready() { return false; }
//     template <typename P> bool await_suspend(std::coroutine_handle<P> h) {
//       if (!Suspend(h)) return false;           // cancelled already: goes on at once
//       scheduler().StartTimer(*this, when_);
//       return true;
//     }
//     absl::Status await_resume() { return cancel_status(); }
class Suspension : public CancelNode {
 protected:
  // Records the coroutine. False if its scope was cancelled already: then the coroutine must not
  // suspend.
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool Suspend(std::coroutine_handle<Promise> coroutine) {
    return Suspend(coroutine.promise());
  }
  bool Suspend(PromiseBase& promise) {
    promise_ = &promise;
    CancelScope* cancel = promise_->cancel;
    if (cancel == nullptr) return true;
    if (cancel->requested()) {
      reason_ = cancel->reason();
      return false;
    }
    cancel->Add(*this);
    return true;
  }

  // Records the coroutine and tells whether its scope was cancelled already. For an await that may
  // find nothing to wait for: cancellation comes first, so that a loop over a queue which is never
  // empty ends.
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool Cancelled(std::coroutine_handle<Promise> coroutine) {
    return Cancelled(coroutine.promise());
  }
  bool Cancelled(PromiseBase& promise) {
    promise_ = &promise;
    if (promise_->cancel != nullptr) reason_ = promise_->cancel->reason();
    return reason_ != absl::StatusCode::kOk;
  }

  // Queues the coroutine. Called once per Suspend() that returned true; cancellation counts as the
  // call.
  void Resume() {
    VERBENA_DCHECK(promise_ != nullptr) << "an await went on that never began";
    CancelNode::Unlink();
    promise_->scheduler->Ready(*promise_);
  }

  // Resume() for `what`, an object that the coroutines of one executor share. A check aborts on any
  // other thread.
  void ResumeAtHome(const char* what) {
    VERBENA_CHECK(scheduler().MayBeUsedHere())
        << what << " wakes a coroutine of another executor: it serves one executor";
    Resume();
  }

  // Instead of Resume(): returns the suspended coroutine, which the caller resumes in its own way.
  PromiseBase& Release() {
    CancelNode::Unlink();
    return *promise_;
  }

  // Called on cancellation before the coroutine is queued: take the awaiter off what it waits on.
  virtual void Detach() = 0;

  Scheduler& scheduler() const { return *promise_->scheduler; }
  // kOk unless the await ended by cancellation.
  absl::StatusCode cancel_reason() const { return reason_; }
  absl::Status cancel_status() const {
    return reason_ == absl::StatusCode::kOk ? absl::OkStatus() : CancelStatus(reason_);
  }

 private:
  void OnCancel(absl::StatusCode reason) final {
    VERBENA_CHECK(scheduler().MayBeUsedHere())
        << "a CancelScope was requested on another thread than that of the coroutines in it: "
           "JoinHandle::RequestCancel() may be called on any";
    reason_ = reason;
    Detach();
    Resume();
  }

  PromiseBase* promise_ = nullptr;
  absl::StatusCode reason_ = absl::StatusCode::kOk;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CORO_TASK_H_
