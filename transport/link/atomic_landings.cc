#include "verbena/transport/link/atomic_landings.h"

#include <infiniband/verbs.h>

#include <cstddef>
#include <utility>

#include "verbena/transport/coro/poison.h"
#include "verbena/transport/link/limits.h"

namespace verbena {
namespace {

constexpr size_t kBytesPerLink = kMaxReads * sizeof(uint64_t);

}  // namespace

absl::StatusOr<AtomicLandings> AtomicLandings::Create(Device& device, ibv_pd* pd,
                                                      uint32_t max_links) {
  if (!device.capabilities().atomics) return AtomicLandings();
  absl::StatusOr<Arena> arena =
      Arena::Create(device, pd, max_links * kBytesPerLink, IBV_ACCESS_LOCAL_WRITE);
  if (!arena.ok()) return arena.status();
  return AtomicLandings(*std::move(arena));
}

AtomicLandings::AtomicLandings(Arena arena) : arena_(std::move(arena)) {
  PoisonMemory(arena_.data(), arena_.size());
}

AtomicLandings::~AtomicLandings() {
  if (arena_.data() != nullptr) UnpoisonMemory(arena_.data(), arena_.size());
}

AtomicWords AtomicLandings::Of(uint32_t slot) const {
  if (arena_.data() == nullptr) return {};
  return {reinterpret_cast<uint64_t*>(arena_.data() + slot * kBytesPerLink), arena_.lkey()};
}

}  // namespace verbena
