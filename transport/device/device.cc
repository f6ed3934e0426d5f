#include "verbena/transport/device/device.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {
namespace {

// In the mask that mbind takes: more than any kernel's MAX_NUMNODES.
constexpr unsigned long kMaxNodes = 4096;
constexpr unsigned long kWordBits = 8 * sizeof(unsigned long);

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

absl::StatusOr<std::byte*> Device::AllocateMemory(size_t bytes) { return MapPages(bytes); }

absl::Status Device::FreeMemory(std::byte* memory, size_t bytes) {
  UnmapPages(memory, bytes);
  return absl::OkStatus();
}

void LogLeakedObject(const Device& device, const char* kind, const absl::Status& status,
                     Excuse excuse) {
  const bool by_memory = excuse == Excuse::kKeptMemory && device.keeps_memory();
  if (by_memory && absl::IsFailedPrecondition(status)) return;
  VERBENA_LOG_LINE(
      kDevice, kError,
      fmt::format("{}: a {} was not destroyed: {}", device.name(), kind, status.ToString()),
      {{"device", device.name()}});
}

int NumaNodeOf(const char* sysfs_path) {
  std::ifstream file(std::string(sysfs_path) + "/device/numa_node");
  int node = -1;
  if (!(file >> node) || node < 0 || static_cast<unsigned long>(node) >= kMaxNodes) return -1;
  return node;
}

bool PreferNumaNode(void* memory, size_t bytes, int node) {
  if (node < 0 || static_cast<unsigned long>(node) >= kMaxNodes) return false;
  unsigned long mask[kMaxNodes / kWordBits] = {};
  mask[static_cast<unsigned long>(node) / kWordBits] |=
      1UL << static_cast<unsigned long>(node) % kWordBits;
  // Without libnuma, which has nothing else that is needed here.
  return syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, mask, kMaxNodes, 0) == 0;
}

absl::StatusOr<std::byte*> MapPages(size_t bytes) {
  VERBENA_CHECK(bytes > 0) << "pages without bytes";
  const size_t mapped = MappedBytes(bytes);
  void* pages = mapped >= kHugePageBytes ? MapHuge(mapped)
                                         : mmap(nullptr, mapped, kProtection, kFlags, -1, 0);
  if (pages == MAP_FAILED) return ErrnoStatus(errno, fmt::format("mmap of {} bytes", mapped));
  return static_cast<std::byte*>(pages);
}

void UnmapPages(std::byte* pages, size_t bytes) { munmap(pages, MappedBytes(bytes)); }

}  // namespace verbena::internal
