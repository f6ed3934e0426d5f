// Memory of coroutine frames: per-thread free lists by size class, so that a call in steady state
// allocates nothing.
//
// A frame remembers the pool it came from. If the pool's own thread frees it, it goes back to the
// list. If another thread does, it goes home through a lock-free list, or to the heap if the pool's
// thread has ended. Frames in a list are poisoned under AddressSanitizer. A pool keeps a bounded
// number of bytes (limits in the .cc) until its thread ends; the heap serves the rest, and frames
// too large to keep.

#ifndef VERBENA_TRANSPORT_CORO_FRAME_POOL_H_
#define VERBENA_TRANSPORT_CORO_FRAME_POOL_H_

#include <cstddef>

#include "verbena/transport/base/export.h"

namespace verbena::internal {

// The alignment of AllocateFrame().
inline constexpr size_t kCoroutineFrameAlignment = 16;

// Never returns null: the process ends when memory is out.
VERBENA_EXPORT void* AllocateFrame(size_t bytes) noexcept;
// From any thread. `bytes` is what the frame was allocated with.
VERBENA_EXPORT void FreeFrame(void* frame, size_t bytes) noexcept;

// For frames that hold over-aligned variables. They come from the heap, and are never pooled.
VERBENA_EXPORT void* AllocateAlignedFrame(size_t bytes, size_t alignment) noexcept;
VERBENA_EXPORT void FreeAlignedFrame(void* frame, size_t bytes, size_t alignment) noexcept;

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CORO_FRAME_POOL_H_
