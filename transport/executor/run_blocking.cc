#include "verbena/transport/executor/run_blocking.h"

#include "verbena/transport/executor/executor_options.h"

namespace verbena::internal {

BlockingPool& BlockingPoolOf(Scheduler& scheduler) {
  const auto* executor = dynamic_cast<const Executor*>(&scheduler);
  BlockingPool* pool = executor == nullptr ? nullptr : executor->options().blocking_pool;
  return pool == nullptr ? BlockingPool::Default() : *pool;
}

}  // namespace verbena::internal
