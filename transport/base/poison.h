// Poisoning: telling AddressSanitizer that memory which a free list holds may not be touched.
//
// A pool hides a use after free, since its memory is never given back to malloc. Everything that
// keeps memory for reuse poisons it here. Without AddressSanitizer these cost nothing.

#ifndef VERBENA_TRANSPORT_BASE_POISON_H_
#define VERBENA_TRANSPORT_BASE_POISON_H_

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define VERBENA_HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VERBENA_HAS_ASAN 1
#endif
#endif

#ifdef VERBENA_HAS_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace verbena::internal {

// Any access to [memory, memory + bytes) is reported until it is unpoisoned. Both ends should be
// multiples of 8: shadow memory knows no finer grain.
inline void PoisonMemory([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#ifdef VERBENA_HAS_ASAN
  __asan_poison_memory_region(memory, bytes);
#endif
}

inline void UnpoisonMemory([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#ifdef VERBENA_HAS_ASAN
  __asan_unpoison_memory_region(memory, bytes);
#endif
}

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_POISON_H_
