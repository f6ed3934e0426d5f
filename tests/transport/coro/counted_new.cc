#include "tests/transport/coro/counted_new.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> news{0};
std::atomic<size_t> deletes{0};

void* Allocate(size_t bytes) {
  news.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  deletes.fetch_add(1, std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  news.fetch_add(1, std::memory_order_relaxed);
  const auto align = static_cast<size_t>(alignment);
  void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { Free(memory); }

namespace verbena {

size_t CountedNews() { return news.load(std::memory_order_relaxed); }
size_t CountedDeletes() { return deletes.load(std::memory_order_relaxed); }

}  // namespace verbena
