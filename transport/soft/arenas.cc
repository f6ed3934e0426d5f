#include "verbena/transport/soft/arenas.h"

#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/soft/peer.h"

namespace verbena::internal::soft {

Arenas::Arenas() {
  for (uint32_t id = 1; id < kMaxArenas; ++id) free_ids_.push_back(id);
}

absl::StatusOr<std::shared_ptr<const SharedArena>> Arenas::Allocate(size_t bytes) {
  VERBENA_ASSIGN_OR_RETURN(SharedRegion region, SharedRegion::CreateLarge("verbena-arena", bytes));
  std::lock_guard<std::mutex> lock(mutex_);
  if (free_ids_.empty()) {
    return absl::ResourceExhaustedError(
        fmt::format("a soft device has at most {} shared arenas", kMaxArenas - 1));
  }
  auto arena = std::make_shared<SharedArena>(SharedArena{free_ids_.front(), std::move(region)});
  free_ids_.pop_front();
  by_address_.emplace(reinterpret_cast<uint64_t>(arena->region.data()), arena);
  return arena;
}

std::shared_ptr<const SharedArena> Arenas::Remove(const std::byte* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = by_address_.find(reinterpret_cast<uint64_t>(memory));
  if (found == by_address_.end()) return nullptr;
  std::shared_ptr<const SharedArena> arena = std::move(found->second);
  by_address_.erase(found);
  return arena;
}

void Arenas::Recycle(uint32_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_ids_.push_back(id);
}

std::shared_ptr<const SharedArena> Arenas::Find(uint64_t address, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto after = by_address_.upper_bound(address);
  if (after == by_address_.begin()) return nullptr;
  const auto& [start, arena] = *std::prev(after);
  const uint64_t offset = address - start;
  const uint64_t size = arena->region.size();
  return offset <= size && bytes <= size - offset ? arena : nullptr;
}

std::vector<std::shared_ptr<const SharedArena>> Arenas::All() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<const SharedArena>> all;
  all.reserve(by_address_.size());
  for (const auto& [_, arena] : by_address_) all.push_back(arena);
  return all;
}

}  // namespace verbena::internal::soft
