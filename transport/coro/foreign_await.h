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

#ifndef VERBENA_TRANSPORT_CORO_FOREIGN_AWAIT_H_
#define VERBENA_TRANSPORT_CORO_FOREIGN_AWAIT_H_

#include <atomic>
#include <concepts>
#include <coroutine>
#include <exception>
#include <type_traits>
#include <utility>

#include "verbena/transport/coro/scheduler.h"

namespace verbena::internal {

// The way home of one foreign await. Shared by the awaiter and the bridge; the last deletes it.
class ForeignReturn final : private InboxItem {
 public:
  ForeignReturn(Scheduler& home, ReadyNode& waiting) : home_(home), waiting_(&waiting) {}

  // From any thread, once: the bridge was resumed. Drops the bridge's reference.
  void Arrive();
  // From any thread, instead: the bridge is destroyed and was never resumed.
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
std::coroutine_handle<> MakeForeignBridge(ForeignReturn& way_home);

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

// An awaitable that takes any coroutine's handle. Ours take those of Tasks alone.
template <typename Awaitable>
concept ForeignAwaitable = requires(Awaitable&& awaitable, std::coroutine_handle<> any) {
  GetAwaiter(std::forward<Awaitable>(awaitable)).await_suspend(any);
};

template <typename Awaitable>
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
    if constexpr (std::same_as<Suspended, bool>) {
      if (awaiter_.await_suspend(bridge)) return std::noop_coroutine();
      bridge.destroy();
      return coroutine;
    } else if constexpr (std::is_void_v<Suspended>) {
      awaiter_.await_suspend(bridge);
      return std::noop_coroutine();
    } else {
      return awaiter_.await_suspend(bridge);
    }
  }
  decltype(auto) await_resume() { return awaiter_.await_resume(); }

 private:
  // A reference if the awaitable is its own awaiter: it lives until the await has ended.
  decltype(GetAwaiter(std::declval<Awaitable>())) awaiter_;
  ForeignReturn* way_home_ = nullptr;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CORO_FOREIGN_AWAIT_H_
