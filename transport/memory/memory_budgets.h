// MemoryBudgets: how much payload memory an executor may pin, by what it is for.
//
// Apart, so that one use cannot starve another: requests that arrive while every byte waits for a
// response could never end. Each budget is a bound, grown into on demand, of one BufferPool; all
// of them together are pinned memory (RLIMIT_MEMLOCK), once per executor.

#ifndef VERBENA_TRANSPORT_MEMORY_MEMORY_BUDGETS_H_
#define VERBENA_TRANSPORT_MEMORY_MEMORY_BUDGETS_H_

#include <cstddef>

namespace verbena {

struct MemoryBudgets {
  // (start) Each holds the largest payload twice.
  // Payloads on their way out, which only we touch.
  size_t send_bytes = size_t{128} << 20;
  // Landings of requests, granted to clients.
  size_t receive_bytes = size_t{128} << 20;
  // Landings of responses, leased to servers; quarantined ones count.
  size_t landing_bytes = size_t{128} << 20;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_MEMORY_MEMORY_BUDGETS_H_
