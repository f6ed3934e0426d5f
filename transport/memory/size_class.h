// Size classes of payload buffers, and orders of free blocks.
//
// Buffers are whole pages of 4 KiB: 1, 2, 3 or 4 of them, then four classes for each doubling (5,
// 6, 7, 8, 10, 12, 14, 16, …), up to 64 MiB. So a buffer takes at most a quarter more than the
// pages that were asked for. Free memory is kept in blocks of powers of two (an order each), of
// which a buffer takes up to three neighbours.

#ifndef VERBENA_TRANSPORT_MEMORY_SIZE_CLASS_H_
#define VERBENA_TRANSPORT_MEMORY_SIZE_CLASS_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace verbena::internal {

inline constexpr size_t kMinBufferBytes = size_t{4} << 10;
inline constexpr size_t kMaxBufferBytes = size_t{64} << 20;

inline constexpr uint32_t kBlockOrders = std::bit_width(kMaxBufferBytes / kMinBufferBytes);
inline constexpr uint32_t kClassesPerDoubling = 4;
// The classes of up to kClassesPerDoubling pages come first; they are two doublings.
inline constexpr uint32_t kSizeClasses =
    kClassesPerDoubling + (kBlockOrders - 3) * kClassesPerDoubling;

constexpr size_t OrderBytes(uint32_t order) { return kMinBufferBytes << order; }

// The smallest order that holds `bytes`, which are at most kMaxBufferBytes.
constexpr uint32_t OrderOf(size_t bytes) {
  return bytes <= kMinBufferBytes ? 0 : std::bit_width((bytes - 1) / kMinBufferBytes);
}

constexpr size_t SizeClassBytes(uint32_t size_class) {
  if (size_class < kClassesPerDoubling) return (size_class + 1) * kMinBufferBytes;
  const uint32_t doubling = size_class / kClassesPerDoubling - 1;
  const size_t pages = kClassesPerDoubling + 1 + size_class % kClassesPerDoubling;
  return (pages << doubling) * kMinBufferBytes;
}

// The smallest class that holds `bytes`, which are at most kMaxBufferBytes.
constexpr uint32_t SizeClassOf(size_t bytes) {
  if (bytes <= kMinBufferBytes) return 0;
  const size_t last_page = (bytes - 1) / kMinBufferBytes;
  if (last_page < kClassesPerDoubling) return static_cast<uint32_t>(last_page);
  const uint32_t doubling = std::bit_width(last_page) - 3;
  return static_cast<uint32_t>(doubling * kClassesPerDoubling + (last_page >> doubling));
}

static_assert(SizeClassBytes(kSizeClasses - 1) == kMaxBufferBytes);
static_assert(SizeClassOf(kMaxBufferBytes) == kSizeClasses - 1);
static_assert(SizeClassOf(0) == 0 && SizeClassOf(4096) == 0 && SizeClassOf(4097) == 1);
static_assert(SizeClassBytes(SizeClassOf(16385)) == 20480);
static_assert(SizeClassBytes(SizeClassOf((16 << 20) + 1)) == 20 << 20);
static_assert(OrderOf(0) == 0 && OrderOf(4096) == 0 && OrderOf(4097) == 1 && OrderOf(8193) == 2);
static_assert(OrderBytes(kBlockOrders - 1) == kMaxBufferBytes);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_MEMORY_SIZE_CLASS_H_
