// AllocateUntil, AllocateWithin: memory from a pool, and within a quota, or an error in time for
// the call that needs it.
//
// A wait that takes too long ends with RESOURCE_EXHAUSTED, which says which budget is full and who
// holds it; the log says so too, at most every ten seconds for each executor.

#ifndef VERBENA_RPC_CALL_ALLOCATE_H_
#define VERBENA_RPC_CALL_ALLOCATE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/quota.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"
#include "verbena/transport/memory/buffer_pool.h"

namespace verbena::internal {

class Endpoint;

// The longest wait for memory, whatever the call's deadline is: handlers that make calls and wait
// for each other's memory would otherwise wait for ever. Servers have an option of their own.
inline constexpr Duration kMaxMemoryWait = std::chrono::seconds(10);

// How long each side waits for the other when a response needs a landing: the server until the
// client leases one, for which the client may wait for memory; then the client until the server has
// answered.
inline constexpr Duration kMaxLandingWait = 2 * kMaxMemoryWait;

// Bytes of a server's pool, by who holds them; handlers hold the rest.
struct MemoryHolders {
  size_t grants = 0;     // landings that clients have for requests to come
  size_t transfers = 0;  // READs and WRITEs of payloads that are under way
};

// Hears that a wait for memory begins, and asks for what others could give back.
class ShortageListener {
 public:
  // `quota`, or memory of the pool, is short.
  virtual void OnQuotaShort(const Quota& quota) = 0;
  virtual void OnPoolShort() = 0;

 protected:
  ~ShortageListener() = default;
};

struct MemoryWait {
  TimePoint deadline = kNever;  // of the call
  Duration longest = kMaxMemoryWait;
  // nullptr at a client. Read when the wait has failed; outlives the wait.
  const MemoryHolders* holders = nullptr;
  ShortageListener* listener = nullptr;  // outlives the wait
  // Unless it is null, counts the waits that ended without a quota. Outlives the wait.
  uint64_t* refused = nullptr;
};

// The latest end of such a wait that begins `now`: after `longest`, or when seven eighths of the
// time until the call's deadline have passed, since the rest of the call takes time, too.
TimePoint WaitLimit(TimePoint now, const MemoryWait& wait);

// A buffer of `bytes` from a pool of `endpoint`, now or when there is one. CANCELLED if the caller
// is cancelled; otherwise fails as BufferPool::Allocate(). `endpoint` and `pool` outlive the Task.
Task<absl::StatusOr<Buffer>> AllocateUntil(const Endpoint& endpoint, BufferPool& pool, size_t bytes,
                                           MemoryWait wait);

// The same within a quota: takes what `hold` wants, unless it has that, and then memory. One limit
// holds for both waits. If the first takes too long, the message says who holds how much. On
// failure `hold` may have a part. It outlives the Task.
Task<absl::StatusOr<Buffer>> AllocateWithin(QuotaHold& hold, const Endpoint& endpoint,
                                            BufferPool& pool, size_t bytes, MemoryWait wait);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CALL_ALLOCATE_H_
