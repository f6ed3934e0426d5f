#include "verbena/transport/coro/frame_pool.h"

#include <new>

namespace verbena::internal {

void* AllocateFrame(size_t bytes) { return ::operator new(bytes); }
void FreeFrame(void* frame, size_t bytes) noexcept { ::operator delete(frame, bytes); }

}  // namespace verbena::internal
