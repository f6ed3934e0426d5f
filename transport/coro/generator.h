// Generator<T>: a coroutine that gives items one by one, and may await between them.
//
// Lazy, move-only, one owner. Next() runs it up to its next co_yield and gives that item, or
// nothing once it has ended. It runs on the scheduler and in the cancel scope of whoever awaits
// Next(): a cancellation or a deadline of the consumer reaches the await in flight inside. The two
// hand over to each other by symmetric transfer, so that a long sequence uses no stack. Frames come
// from the pool of Tasks.
//
// A Generator says that it failed by the type of its items (absl::StatusOr<Item>), or by an
// exception, which comes out of Next() and ends it. It may be destroyed at any time between two
// calls of Next(); it is then abandoned as a Task would be. Destroying the coroutine that waits in
// Next() abandons the Generator too, which is then empty. One scheduler for all calls of Next(). A
// CurrentContext() taken inside is valid up to the next co_yield only, because another coroutine
// may ask for the next item. Arguments by reference must outlive the Generator.
//
//   Generator<absl::StatusOr<Block>> Scan(Store& store, std::string prefix) {
//     for (std::string name = prefix; store.FindNext(name);) co_yield co_await store.Read(name);
//   }
//
//   Generator<absl::StatusOr<Block>> blocks = Scan(store, "a");
//   while (std::optional<absl::StatusOr<Block>> block = co_await blocks.Next()) {
//     …
//   }
//
//   precondition                              how it is checked   test
//   not empty when it is asked                a check aborts      generator_test
//   one coroutine at a time waits in Next()   a check aborts      generator_test
//   not moved or destroyed meanwhile          a check aborts      generator_test
//   all calls of Next() on one scheduler      a check aborts      generator_test
//   arguments by reference outlive it         clang warns         lifetime_warnings

#ifndef VERBENA_TRANSPORT_CORO_GENERATOR_H_
#define VERBENA_TRANSPORT_CORO_GENERATOR_H_

#include <concepts>
#include <coroutine>
#include <optional>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/frame_pool.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

template <std::movable T>
class Generator;

namespace internal {

#if !defined(__clang__)
// The co_yield of a Generator that gcc compiles: hands over to whoever waits in Next().
template <typename Promise, bool kTailCalls>
class GccYieldAwaiter final {
 public:
  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> yielding) noexcept {
    promise_ = &yielding.promise();
    if constexpr (kTailCalls) return promise_->continuation;
    promise_->handle = promise_->continuation;
    promise_->scheduler->HandOver(*promise_);
    return std::noop_coroutine();
  }
  void await_resume() const noexcept {
    promise_->handle = std::coroutine_handle<Promise>::from_promise(*promise_);
  }

 private:
  Promise* promise_ = nullptr;
};
#endif

template <typename T>
class GeneratorPromise final : public PromiseBase {
#if !defined(__clang__)
  static_assert(alignof(T) <= kCoroutineFrameAlignment,
                "gcc aligns coroutines to 16 bytes: yield an over-aligned item in another way, or "
                "compile with clang");
#endif

 public:
  Generator<T> get_return_object() noexcept;
  void return_void() const noexcept {}

#if defined(__clang__)
  // Hands over to whoever waits in Next().
  struct YieldAwaiter {
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(
        std::coroutine_handle<GeneratorPromise> yielding) noexcept {
      return yielding.promise().continuation;
    }
    void await_resume() const noexcept {}
  };
#else
  using YieldAwaiter = GccYieldAwaiter<GeneratorPromise, VERBENA_TAIL_CALLS>;
#endif
  template <typename U = T>
    requires std::constructible_from<T, U&&>
  YieldAwaiter yield_value(U&& item) {
    VERBENA_DCHECK(!item_.has_value()) << "nobody took the item before this one";
    item_.emplace(std::forward<U>(item));
    return {};
  }

  // After a co_yield or the end. Throws what ended the coroutine, once.
  std::optional<T> TakeItem() {
    RethrowIfFailed();
    return std::exchange(item_, std::nullopt);
  }

 private:
  std::optional<T> item_;
};

}  // namespace internal
}  // namespace verbena

#if !defined(__clang__)
template <typename T, typename... Parameters>
struct std::coroutine_traits<verbena::Generator<T>, Parameters...>
    : verbena::internal::GccCoroutineTraits<verbena::internal::GeneratorPromise<T>, Parameters...> {
};
#endif

namespace verbena {

template <std::movable T>
class VERBENA_CORO_TASK [[nodiscard]] Generator {
 public:
  using promise_type = internal::GeneratorPromise<T>;
  using value_type = T;

  class NextAwaiter;

  Generator() = default;
  Generator(Generator&& other) noexcept : coroutine_(other.Release()) {}
  Generator& operator=(Generator&& other) noexcept {
    if (this != &other) {
      Destroy();
      coroutine_ = other.Release();
    }
    return *this;
  }
  ~Generator() { Destroy(); }

  // False when default-constructed, moved from or abandoned.
  explicit operator bool() const { return coroutine_ != nullptr; }

  // co_await gives std::optional<T>: the next item, or nothing after the last.
  NextAwaiter Next() { return NextAwaiter(*this); }

 private:
  friend promise_type;
  explicit Generator(std::coroutine_handle<promise_type> coroutine) : coroutine_(coroutine) {}

  std::coroutine_handle<promise_type> Release() {
    CheckNobodyWaits();
    return std::exchange(coroutine_, nullptr);
  }
  void Destroy() {
    CheckNobodyWaits();
    if (coroutine_) coroutine_.destroy();
  }
  void CheckNobodyWaits() const {
    VERBENA_CHECK(!awaited_) << "a Generator was moved or destroyed while somebody waits in Next()";
  }

  std::coroutine_handle<promise_type> coroutine_;
  bool awaited_ = false;
};

// The await of Next(). Destroyed while it waits, it destroys the Generator's coroutine, which would
// otherwise go on in the cancel scope of a coroutine that is gone.
template <std::movable T>
class [[nodiscard]] Generator<T>::NextAwaiter final {
 public:
  explicit NextAwaiter(Generator& generator) : generator_(generator) {}
  NextAwaiter(const NextAwaiter&) = delete;
  NextAwaiter& operator=(const NextAwaiter&) = delete;
  ~NextAwaiter() {
    if (!waiting_) return;
    generator_.awaited_ = false;
    std::exchange(generator_.coroutine_, nullptr).destroy();
  }

  bool await_ready() const {
    VERBENA_CHECK(generator_.coroutine_ != nullptr)
        << "Next() of a Generator that is empty, moved from or abandoned";
    VERBENA_CHECK(!generator_.awaited_) << "two coroutines wait in Next() of one Generator";
    return generator_.coroutine_.done();
  }
  template <typename Parent>
    requires std::derived_from<Parent, internal::PromiseBase>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Parent> parent) {
    const internal::PromiseBase& consumer = parent.promise();
    internal::PromiseBase& promise = generator_.coroutine_.promise();
    const bool begins = promise.scheduler == nullptr;
    VERBENA_CHECK(begins || promise.scheduler == consumer.scheduler)
        << "a Generator was asked on two executors";
    promise.continuation = parent;
    promise.scheduler = consumer.scheduler;
    promise.cancel = consumer.cancel;
    generator_.awaited_ = waiting_ = true;
    return generator_.coroutine_;
  }
  std::optional<T> await_resume() {
    generator_.awaited_ = waiting_ = false;
    return generator_.coroutine_.promise().TakeItem();
  }

 private:
  Generator& generator_;
  bool waiting_ = false;
};

namespace internal {

template <typename T>
Generator<T> GeneratorPromise<T>::get_return_object() noexcept {
  auto self = std::coroutine_handle<GeneratorPromise>::from_promise(*this);
  handle = self;
  return Generator<T>(self);
}

}  // namespace internal
}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_GENERATOR_H_
