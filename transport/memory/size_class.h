// Size classes of payload buffers: powers of two from 4 KiB to 64 MiB.

#ifndef VERBENA_TRANSPORT_MEMORY_SIZE_CLASS_H_
#define VERBENA_TRANSPORT_MEMORY_SIZE_CLASS_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace verbena {

inline constexpr size_t kMinBufferBytes = size_t{4} << 10;
inline constexpr size_t kMaxBufferBytes = size_t{64} << 20;
inline constexpr uint32_t kSizeClasses = std::bit_width(kMaxBufferBytes / kMinBufferBytes);

constexpr size_t SizeClassBytes(uint32_t size_class) { return kMinBufferBytes << size_class; }

// The smallest class that holds `bytes`, which are at most kMaxBufferBytes.
constexpr uint32_t SizeClassOf(size_t bytes) {
  return bytes <= kMinBufferBytes ? 0 : std::bit_width((bytes - 1) / kMinBufferBytes);
}

static_assert(SizeClassBytes(kSizeClasses - 1) == kMaxBufferBytes);
static_assert(SizeClassOf(0) == 0 && SizeClassOf(4096) == 0 && SizeClassOf(4097) == 1 &&
              SizeClassOf(8192) == 1 && SizeClassOf(8193) == 2);
static_assert(SizeClassOf(kMaxBufferBytes) == kSizeClasses - 1);

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_MEMORY_SIZE_CLASS_H_
