#include "verbena/transport/device/pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#include "fmt/format.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr int kProtection = PROT_READ | PROT_WRITE;
constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS;

size_t MappedBytes(size_t bytes) {
  if (bytes < kHugePageBytes) return bytes;
  return (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

// Maps one huge page more, and gives back the bytes before the first huge page and behind the last.
void* MapAligned(size_t bytes) {
  void* mapped = mmap(nullptr, bytes + kHugePageBytes, kProtection, kFlags, /*fd=*/-1, 0);
  if (mapped == MAP_FAILED) return MAP_FAILED;
  char* const start = static_cast<char*>(mapped);
  const size_t before =
      (kHugePageBytes - reinterpret_cast<uintptr_t>(start) % kHugePageBytes) % kHugePageBytes;
  if (before > 0) munmap(start, before);
  if (before < kHugePageBytes) munmap(start + before + bytes, kHugePageBytes - before);
  return start + before;
}

void* MapHuge(size_t bytes) {
  constexpr int kHuge = MAP_HUGETLB | 21 << MAP_HUGE_SHIFT;  // 2^21 bytes
  // The mapping reserves its pages, so that none is found missing later.
  void* pages = mmap(nullptr, bytes, kProtection, kFlags | kHuge, /*fd=*/-1, 0);
  if (pages != MAP_FAILED) return pages;
  pages = MapAligned(bytes);
  // Only advice.
  if (pages != MAP_FAILED) madvise(pages, bytes, MADV_HUGEPAGE);
  return pages;
}

}  // namespace

absl::StatusOr<std::byte*> MapPages(size_t bytes) {
  const size_t mapped = MappedBytes(bytes);
  void* pages = mapped >= kHugePageBytes ? MapHuge(mapped)
                                         : mmap(nullptr, mapped, kProtection, kFlags, -1, 0);
  if (pages == MAP_FAILED) return ErrnoStatus(errno, fmt::format("mmap of {} bytes", mapped));
  return static_cast<std::byte*>(pages);
}

void UnmapPages(std::byte* pages, size_t bytes) { munmap(pages, MappedBytes(bytes)); }

}  // namespace verbena::internal
