// Turn: waits until an executor has run what was posted to it by now, so at least for a turn of its
// loop. For coroutines of that executor, which Yield() may resume in the same turn.
//
//   while (pool.stats().bytes_in_use > 0) co_await Turn(executor);

#ifndef VERBENA_TESTS_SUPPORT_TURN_H_
#define VERBENA_TESTS_SUPPORT_TURN_H_

#include <memory>
#include <thread>

#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/executor.h"

namespace verbena {

// On a busy machine, threads that work for the executor would get this thread's core only when its
// time is over.
inline Task<void> Turn(Executor& executor) {
  std::this_thread::yield();
  const auto turned = std::make_shared<Event>();
  executor.PostFunction([turned] { turned->Set(); });
  (co_await turned->Wait()).IgnoreError();
}

}  // namespace verbena

#endif  // VERBENA_TESTS_SUPPORT_TURN_H_
