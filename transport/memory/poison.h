// Poisoning: memory that a pool holds is marked for AddressSanitizer, so that a use after its release is reported
// although it was never freed. Nothing in other builds.

#ifndef VERBENA_TRANSPORT_MEMORY_POISON_H_
#define VERBENA_TRANSPORT_MEMORY_POISON_H_

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define VERBENA_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VERBENA_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef VERBENA_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace verbena {

inline void PoisonMemory([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#ifdef VERBENA_ADDRESS_SANITIZER
  __asan_poison_memory_region(memory, bytes);
#endif
}

inline void UnpoisonMemory([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#ifdef VERBENA_ADDRESS_SANITIZER
  __asan_unpoison_memory_region(memory, bytes);
#endif
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_MEMORY_POISON_H_
