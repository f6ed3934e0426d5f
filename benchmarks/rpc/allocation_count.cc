#include "verbena/benchmarks/rpc/allocation_count.h"

#include <atomic>
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VERBENA_OWN_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define VERBENA_OWN_MALLOC 0  // the sanitizer's own malloc must stay
#endif
#endif
#ifndef VERBENA_OWN_MALLOC
#define VERBENA_OWN_MALLOC 1
#endif

namespace verbena::benchmarks {
namespace {

std::atomic<uint64_t> allocations{0};

}  // namespace

uint64_t AllocationCount() { return allocations.load(std::memory_order_relaxed); }

#if VERBENA_OWN_MALLOC
namespace {

void Count() { allocations.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

// glibc's own names for its allocator, which it exports for replacements like these.
extern "C" {
void* __libc_malloc(size_t bytes);                  // NOLINT(bugprone-reserved-identifier)
void* __libc_calloc(size_t count, size_t bytes);    // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void* memory, size_t bytes);   // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(size_t align, size_t bytes);  // NOLINT(bugprone-reserved-identifier)

void* malloc(size_t bytes) {
  Count();
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  Count();
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  Count();
  return __libc_realloc(memory, bytes);
}
void* aligned_alloc(size_t align, size_t bytes) {
  Count();
  return __libc_memalign(align, bytes);
}
}
#endif

}  // namespace verbena::benchmarks
