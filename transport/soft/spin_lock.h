// SpinLock: the lock of queues that are held for tens of nanoseconds.
//
// Works with std::lock_guard. A waiter that does not get it soon yields its core, because the
// holder may have been preempted. Leaf locks are taken after queue locks; two queue locks are taken
// in the order of their addresses (see completion_queue.h).

#ifndef VERBENA_TRANSPORT_SOFT_SPIN_LOCK_H_
#define VERBENA_TRANSPORT_SOFT_SPIN_LOCK_H_

#include <immintrin.h>
#include <sched.h>

#include <atomic>

namespace verbena::internal::soft {

class SpinLock {
 public:
  void lock() {
    while (locked_.exchange(true, std::memory_order_acquire)) Wait();
  }
  bool try_lock() {
    return !locked_.load(std::memory_order_relaxed) &&
           !locked_.exchange(true, std::memory_order_acquire);
  }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  void Wait() {
    for (int spins = 0; locked_.load(std::memory_order_relaxed); ++spins) {
      if (spins < 256) {
        _mm_pause();
      } else {
        sched_yield();
      }
    }
  }

  std::atomic<bool> locked_{false};
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_SPIN_LOCK_H_
