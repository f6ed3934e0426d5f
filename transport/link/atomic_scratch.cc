#include "verbena/transport/link/atomic_scratch.h"

#include <infiniband/verbs.h>

#include <cstddef>
#include <utility>

#include "verbena/transport/base/poison.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/link/bulk_limits.h"

namespace verbena::internal {
namespace {

constexpr size_t kBytesPerLink = kMaxReads * sizeof(uint64_t);

}  // namespace

absl::StatusOr<AtomicScratch> AtomicScratch::Create(Device& device, ibv_pd* pd,
                                                    uint32_t max_links) {
  if (!device.capabilities().atomics) return AtomicScratch();
  VERBENA_ASSIGN_OR_RETURN(
      Arena arena, Arena::Create(device, pd, max_links * kBytesPerLink, IBV_ACCESS_LOCAL_WRITE));
  return AtomicScratch(std::move(arena));
}

AtomicScratch::AtomicScratch(Arena arena) : arena_(std::move(arena)) {
  PoisonMemory(arena_.data(), arena_.size());
}

AtomicScratch::~AtomicScratch() {
  if (arena_.data() != nullptr) UnpoisonMemory(arena_.data(), arena_.size());
}

AtomicWords AtomicScratch::Of(uint32_t slot) const {
  if (arena_.data() == nullptr) return {};
  return {reinterpret_cast<uint64_t*>(arena_.data() + slot * kBytesPerLink), arena_.lkey()};
}

}  // namespace verbena::internal
