#include "verbena/transport/memory/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

absl::StatusOr<Arena> Arena::Create(Device& device, ibv_pd* pd, size_t bytes, int access) {
  bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoStatus(errno, fmt::format("mmap of {} bytes for an arena", bytes));
  }
  // Only advice: without huge pages everything works, with more TLB misses.
  if (bytes >= kHugePageBytes) madvise(memory, bytes, MADV_HUGEPAGE);
  Arena arena;
  arena.data_ = static_cast<char*>(memory);
  arena.bytes_ = bytes;
  absl::StatusOr<ibv_mr*> mr = device.RegMr(pd, memory, bytes, access);
  if (!mr.ok()) return mr.status();
  arena.mr_ = MrHandle(device, *mr);
  return arena;
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mr_(std::move(other.mr_)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this != &other) {
    Release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    mr_ = std::move(other.mr_);
  }
  return *this;
}

Arena::~Arena() { Release(); }

void Arena::Release() {
  mr_.Reset();
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = nullptr;
}

}  // namespace verbena
