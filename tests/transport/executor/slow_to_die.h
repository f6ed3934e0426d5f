// SlowToDie: the argument of a task, by which a test sees who waits for the task's frame.

#ifndef VERBENA_TESTS_TRANSPORT_EXECUTOR_SLOW_TO_DIE_H_
#define VERBENA_TESTS_TRANSPORT_EXECUTOR_SLOW_TO_DIE_H_

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "verbena/transport/coro/task.h"

namespace verbena {

// Its destructor takes long enough for a caller who does not wait for it to be seen. A latch would
// not do: nobody is to come while it waits. However slow the machine, a caller who waits passes.
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

// Returns 7, and its frame holds the argument until it is destroyed.
inline Task<int> Keep(SlowToDie) { co_return 7; }

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_EXECUTOR_SLOW_TO_DIE_H_
