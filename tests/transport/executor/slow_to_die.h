// SlowToDie: a task's argument that is slow to destroy, to test that callers wait for the task's
// frame.

#ifndef VERBENA_TESTS_TRANSPORT_EXECUTOR_SLOW_TO_DIE_H_
#define VERBENA_TESTS_TRANSPORT_EXECUTOR_SLOW_TO_DIE_H_

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "verbena/transport/coro/task.h"

namespace verbena {

// Its destructor sleeps, then sets `dead`. A caller who does not wait for the frame goes on first
// and finds `dead` false. A caller who waits passes on the slowest machine. A latch could not
// replace the sleep, since nobody may come while the destructor runs.
class SlowToDie {
 public:
  explicit SlowToDie(std::atomic<bool>& dead) : dead_(&dead) {}
  SlowToDie(SlowToDie&& other) noexcept : dead_(std::exchange(other.dead_, nullptr)) {}
  SlowToDie& operator=(SlowToDie&&) = delete;
  ~SlowToDie() {
    if (dead_ == nullptr) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    *dead_ = true;
  }

 private:
  std::atomic<bool>* dead_;
};

// Returns 7. The frame holds the argument until the frame is destroyed.
inline Task<int> Keep(SlowToDie) { co_return 7; }

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_EXECUTOR_SLOW_TO_DIE_H_
