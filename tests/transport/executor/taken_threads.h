// TakenThreads: all threads of RunBlocking() are taken, as slow disks take them.
//
// Of the process's own pool, which schedulers without an executor use. Its destructor frees them.
//
//   const TakenThreads taken(scheduler);

#ifndef VERBENA_TESTS_TRANSPORT_EXECUTOR_TAKEN_THREADS_H_
#define VERBENA_TESTS_TRANSPORT_EXECUTOR_TAKEN_THREADS_H_

#include <latch>
#include <memory>
#include <vector>

#include "tests/transport/coro/started.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/executor/blocking.h"
#include "verbena/transport/executor/options.h"

namespace verbena::internal {

class TakenThreads {
 public:
  explicit TakenThreads(Scheduler& scheduler) {
    for (int i = 0; i < kDefaultBlockingThreads; ++i) {
      taken_.push_back(
          std::make_unique<Started<void>>(scheduler, RunBlocking([this] { free_.wait(); })));
    }
  }
  ~TakenThreads() { free_.count_down(); }
  TakenThreads(const TakenThreads&) = delete;
  TakenThreads& operator=(const TakenThreads&) = delete;

 private:
  std::latch free_{1};
  std::vector<std::unique_ptr<Started<void>>> taken_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_TRANSPORT_EXECUTOR_TAKEN_THREADS_H_
