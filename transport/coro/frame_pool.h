// Memory of coroutine frames: per-thread free lists by size class, so that a call in steady state
// allocates nothing.
//
// A frame remembers the pool it came from. Freed on its own thread it goes back to the list; freed
// on another it is handed home through a lock-free list. What a list holds is poisoned under
// AddressSanitizer. A pool keeps at most kMaxCachedBytes (limits in the .cc); the rest goes to the
// heap.

#ifndef VERBENA_TRANSPORT_CORO_FRAME_POOL_H_
#define VERBENA_TRANSPORT_CORO_FRAME_POOL_H_

#include <cstddef>

namespace verbena::internal {

// Never return null: like operator new, they end the process when memory is out.
void* AllocateFrame(size_t bytes);
void FreeFrame(void* frame, size_t bytes) noexcept;

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CORO_FRAME_POOL_H_
