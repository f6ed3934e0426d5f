#include "benchmarks/floor/tcp_area.h"

#include <sys/mman.h>

#include "benchmarks/floor/patience.h"
#include "benchmarks/floor/socket_pair.h"

namespace verbena::benchmarks::internal {

absl::StatusOr<TcpArea*> TcpArea::Map() {
  void* memory =
      mmap(nullptr, sizeof(TcpArea), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return FloorError("mmap");
  return static_cast<TcpArea*>(memory);
}

void TcpArea::Unmap(TcpArea* area) { munmap(area, sizeof(TcpArea)); }

absl::StatusOr<SliceWords> SliceWords::AwaitNext(TcpArea& area) {
  const std::uint32_t number = area.ended.load(std::memory_order_acquire) + 1;
  area.ready.store(number, std::memory_order_release);
  Patience patience;
  while (area.begun.load(std::memory_order_acquire) != number) {
    if (!patience.Spin()) return absl::DeadlineExceededError("no floor slice was begun");
  }
  return SliceWords(area, number);
}

absl::StatusOr<SliceWords> SliceWords::Begin(TcpArea& area, bool echo, TcpWay way,
                                             const CopySlice& slice) {
  const std::uint32_t number = area.ended.load(std::memory_order_relaxed) + 1;
  Patience patience;
  while (area.ready.load(std::memory_order_acquire) != number) {
    if (!patience.Spin()) return absl::DeadlineExceededError("no server for the floor");
  }
  area.echo = echo;
  area.way = way;
  area.slice = slice;
  area.begun.store(number, std::memory_order_release);
  return SliceWords(area, number);
}

absl::Status SliceWords::AwaitSetUp() const {
  Patience patience;
  while (area_.set_up.load(std::memory_order_acquire) != number_) {
    if (!patience.Spin()) {
      return absl::DeadlineExceededError("the floor's server has not set up its slice");
    }
  }
  return absl::OkStatus();
}

}  // namespace verbena::benchmarks::internal
