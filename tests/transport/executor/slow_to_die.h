// SlowToDie: a task's argument that is slow to destroy, to test that callers wait for the task's
// frame.

#ifndef VERBENA_TESTS_TRANSPORT_EXECUTOR_SLOW_TO_DIE_H_
#define VERBENA_TESTS_TRANSPORT_EXECUTOR_SLOW_TO_DIE_H_

#include <atomic>
#include <thread>
#include <utility>

#include "tests/support/asleep.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

// Its destructor sets `dead` when no other thread can go on. A caller who does not wait for the
// frame, and was woken before, has found `dead` false by then. A caller who waits sleeps, and so do
// the threads between it and the frame.
class SlowToDie {
 public:
  explicit SlowToDie(std::atomic<bool>& dead) : dead_(&dead) {}
  SlowToDie(SlowToDie&& other) noexcept : dead_(std::exchange(other.dead_, nullptr)) {}
  SlowToDie& operator=(SlowToDie&&) = delete;
  ~SlowToDie() {
    if (dead_ == nullptr) return;
    while (!OthersAreAsleep()) std::this_thread::yield();
    *dead_ = true;
  }

 private:
  std::atomic<bool>* dead_;
};

// Returns 7. The frame holds the argument until the frame is destroyed.
inline Task<int> Keep(SlowToDie) { co_return 7; }

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_EXECUTOR_SLOW_TO_DIE_H_
