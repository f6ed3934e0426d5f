#include "tests/transport/coro/counted_new.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> news{0};
std::atomic<size_t> deletes{0};

// nullptr if there is no memory.
void* TryAllocate(size_t bytes) {
  news.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* TryAllocate(size_t bytes, std::align_val_t alignment) {
  news.fetch_add(1, std::memory_order_relaxed);
  const auto align = static_cast<size_t>(alignment);
  return std::aligned_alloc(align, (bytes + align - 1) / align * align);
}

void* OrAbort(void* memory) {
  if (memory == nullptr) std::abort();
  return memory;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  deletes.fetch_add(1, std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

// All forms are replaced: memory from a form of a sanitizer must not reach a delete of these.
using Nothrow = const std::nothrow_t&;
void* operator new(size_t bytes) { return OrAbort(TryAllocate(bytes)); }
void* operator new[](size_t bytes) { return OrAbort(TryAllocate(bytes)); }
void* operator new(size_t bytes, Nothrow) noexcept { return TryAllocate(bytes); }
void* operator new[](size_t bytes, Nothrow) noexcept { return TryAllocate(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return OrAbort(TryAllocate(bytes, alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return OrAbort(TryAllocate(bytes, alignment));
}
void* operator new(size_t bytes, std::align_val_t alignment, Nothrow) noexcept {
  return TryAllocate(bytes, alignment);
}
void* operator new[](size_t bytes, std::align_val_t alignment, Nothrow) noexcept {
  return TryAllocate(bytes, alignment);
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }
void operator delete(void* memory, Nothrow) noexcept { Free(memory); }
void operator delete[](void* memory, Nothrow) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t, Nothrow) noexcept { Free(memory); }
void operator delete[](void* memory, std::align_val_t, Nothrow) noexcept { Free(memory); }

namespace verbena {

size_t CountedNews() { return news.load(std::memory_order_relaxed); }
size_t CountedDeletes() { return deletes.load(std::memory_order_relaxed); }

}  // namespace verbena
