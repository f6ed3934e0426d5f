// Mutex: one coroutine at a time, also across a co_await.
//
// For state of one executor that a coroutine changes in several steps with awaits between them.
// Without an await in between, coroutines of one executor need no lock. Waiters are served first
// come, first served, and are queued, never resumed inline. Lock() returns a MutexLock, which
// unlocks at the end of its scope, or the reason when the coroutine's scope is cancelled. A waiter
// that is destroyed gives up its place; if the lock was its already, the next waiter gets it.
// Allocates nothing. One thread. Must outlive its waiters and locks: a check aborts if it is
// destroyed locked. Not recursive: a coroutine that locks it twice waits until it is cancelled.
//
//   Mutex log_mutex;
//   VERBENA_CO_ASSIGN_OR_RETURN(const MutexLock lock, co_await log_mutex.Lock());
//   VERBENA_CO_RETURN_IF_ERROR(co_await Append(header));
//   VERBENA_CO_RETURN_IF_ERROR(co_await Append(body));   // nothing of others is between the two

#ifndef VERBENA_TRANSPORT_CORO_MUTEX_H_
#define VERBENA_TRANSPORT_CORO_MUTEX_H_

#include <concepts>
#include <coroutine>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/coro/semaphore.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

class MutexLock;

class Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  ~Mutex() { VERBENA_CHECK(!locked()) << "a Mutex was destroyed while somebody holds it"; }

  // The await of Lock().
  class [[nodiscard]] Awaiter final {
   public:
    explicit Awaiter(Mutex& mutex) : mutex_(mutex), permit_(mutex.permit_.Acquire()) {}

    bool await_ready() const noexcept { return false; }
    template <typename Promise>
      requires std::derived_from<Promise, internal::PromiseBase>
    bool await_suspend(std::coroutine_handle<Promise> coroutine) {
      return permit_.await_suspend(coroutine);
    }
    absl::StatusOr<MutexLock> await_resume();

   private:
    Mutex& mutex_;
    Semaphore::Awaiter permit_;
  };

  // co_await gives absl::StatusOr<MutexLock>.
  Awaiter Lock() { return Awaiter(*this); }
  // Nothing when it is locked.
  std::optional<MutexLock> TryLock();

  // True also while the lock is on its way to a waiter.
  bool locked() const { return permit_.available() == 0; }

 private:
  friend class MutexLock;

  Semaphore permit_{1};
};

// A locked Mutex, unlocked at the end of a scope. Move-only; on the mutex's thread.
class [[nodiscard]] MutexLock {
 public:
  MutexLock(MutexLock&& other) noexcept : mutex_(std::exchange(other.mutex_, nullptr)) {}
  MutexLock& operator=(MutexLock&& other) noexcept {
    if (this != &other) {
      Unlock();
      mutex_ = std::exchange(other.mutex_, nullptr);
    }
    return *this;
  }
  ~MutexLock() { Unlock(); }

  // Unlocks before the end of the scope. Does nothing if it was unlocked or moved from.
  void Unlock() {
    if (Mutex* mutex = std::exchange(mutex_, nullptr)) mutex->permit_.Release();
  }

 private:
  friend class Mutex;
  // The mutex's permit is this object's now.
  explicit MutexLock(Mutex& mutex) : mutex_(&mutex) {}

  Mutex* mutex_;
};

inline absl::StatusOr<MutexLock> Mutex::Awaiter::await_resume() {
  VERBENA_RETURN_IF_ERROR(permit_.await_resume());
  return MutexLock(mutex_);
}

inline std::optional<MutexLock> Mutex::TryLock() {
  if (!permit_.TryAcquire()) return std::nullopt;
  return MutexLock(*this);
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_MUTEX_H_
