// Arenas: memory of a device that its peers can map, so that their one-sided operations are copies
// by the initiator alone.
//
// Each arena is one sealed memfd. Few and large: at most kMaxArenas - 1 at a time. Any thread. The
// memory lives until it is freed here and no peer that was told of it maps it any more.

#ifndef VERBENA_TRANSPORT_SOFT_ARENAS_H_
#define VERBENA_TRANSPORT_SOFT_ARENAS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/soft/shared_region.h"

namespace verbena::internal::soft {

// Memory that the device has allocated, and that peers of other processes may map by its number.
struct SharedArena {
  uint32_t id = 0;
  SharedRegion region;
};

class Arenas {
 public:
  Arenas();

  absl::StatusOr<std::shared_ptr<const SharedArena>> Allocate(size_t bytes);
  // Removes the arena that starts at `memory`; null when there is none. No other arena gets its
  // number before Recycle().
  std::shared_ptr<const SharedArena> Remove(const std::byte* memory);
  void Recycle(uint32_t id);

  // The arena that holds all of [address, address + bytes); null when none does.
  std::shared_ptr<const SharedArena> Find(uint64_t address, uint64_t bytes);
  std::vector<std::shared_ptr<const SharedArena>> All();

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const SharedArena>> by_address_;
  std::deque<uint32_t> free_ids_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_ARENAS_H_
