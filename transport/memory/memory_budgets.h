// MemoryBudgets: how much payload memory an executor may pin, by what it is for.
//
// The budgets are separate, so that one use cannot starve another: otherwise responses could
// take all memory, and the requests that they wait for could never end. Each budget is a bound of
// one BufferPool, which grows into it on demand. All of them together are pinned memory
// (RLIMIT_MEMLOCK), for each executor on each device.

#ifndef VERBENA_TRANSPORT_MEMORY_MEMORY_BUDGETS_H_
#define VERBENA_TRANSPORT_MEMORY_MEMORY_BUDGETS_H_

#include <cstddef>

namespace verbena {

struct MemoryBudgets {
  // (start) Each holds the largest payload twice.
  // Payloads on their way out. Peers may READ them in place, under a lease.
  size_t send_bytes = size_t{128} << 20;
  // Payloads of requests on their way in: landings granted to clients, or filled by our READs.
  size_t receive_bytes = size_t{128} << 20;
  // Landings of responses, leased to servers; quarantined ones count.
  size_t landing_bytes = size_t{128} << 20;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_MEMORY_MEMORY_BUDGETS_H_
