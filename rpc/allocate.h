// AllocateUntil: memory from a pool, no later than a deadline.

#ifndef VERBENA_RPC_ALLOCATE_H_
#define VERBENA_RPC_ALLOCATE_H_

#include <chrono>
#include <cstddef>

#include "absl/status/statusor.h"
#include "verbena/transport/coro/clock.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer_pool.h"

namespace verbena {

// The longest wait for memory of a call that has no deadline: handlers that make calls and wait for
// each other's memory would else do so for ever.
inline constexpr Duration kMaxMemoryWait = std::chrono::seconds(10);

// A buffer of `bytes`, now or when there is one. DEADLINE_EXCEEDED when that takes until
// `deadline`, RESOURCE_EXHAUSTED after kMaxMemoryWait without a deadline; else as
// BufferPool::Allocate(). `pool` outlives the Task.
Task<absl::StatusOr<Buffer>> AllocateUntil(BufferPool& pool, size_t bytes, TimePoint deadline);

}  // namespace verbena

#endif  // VERBENA_RPC_ALLOCATE_H_
