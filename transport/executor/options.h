// ExecutorOptions: how an executor runs, and what it counts.

#ifndef VERBENA_TRANSPORT_EXECUTOR_OPTIONS_H_
#define VERBENA_TRANSPORT_EXECUTOR_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "verbena/transport/base/clock.h"

namespace verbena {

class BlockingPool;

namespace internal {
// (start) The threads of a BlockingPool: callables of RunBlocking() that run at once.
inline constexpr int kDefaultBlockingThreads = 8;
}  // namespace internal

enum class ExecutorMode {
  kBusy,      // never sleeps: the lowest latency, one core spent
  kAdaptive,  // spins for `spin` after the last event, then sleeps
  kEvent,     // sleeps as soon as there is nothing to do
};

// How an idle executor sleeps, and how it reaches files.
enum class WaiterKind {
  kAuto,     // io_uring if the kernel allows it, otherwise epoll
  kIoUring,  // creation fails if the kernel forbids it
  kEpoll,
};

struct ExecutorOptions {
  std::string name = "executor";
  ExecutorMode mode = ExecutorMode::kAdaptive;
  Duration spin = std::chrono::microseconds(50);
  WaiterKind waiter = WaiterKind::kAuto;
  // The core that Run() pins its thread to, until it returns; -1 leaves it to the kernel.
  int cpu = -1;
  // nullptr means Clock::Real(). Must outlive the executor. Timers and now() follow it; spinning
  // and sleeping take real time, so a clock that somebody moves by hand goes with Poll().
  Clock* clock = nullptr;
  // The threads of RunBlocking(). nullptr means BlockingPool::Default(). Must outlive the executor.
  BlockingPool* blocking_pool = nullptr;
  // True: each poll that finds something reads the processor's counter (TurnTicks::found), for the
  // times of calls. The readings are of `clock` if there is one.
  bool stamps = false;
};

struct ExecutorStats {
  uint64_t turns = 0;
  uint64_t completions = 0;
  uint64_t resumed = 0;  // coroutines run from the ready queue
  uint64_t sleeps = 0;   // times the thread slept in the Waiter
  uint64_t inbox_items = 0;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_EXECUTOR_OPTIONS_H_
