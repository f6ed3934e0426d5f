// AtomicScratch: registered words in which a device leaves what an atomic operation found.
//
// Each link of an endpoint has kMaxReads words: as many operations as can be outstanding, so none
// waits for a word. A link's TransferQueue uses its words in turn, and poisons those that no
// operation uses. Owned by the Endpoint, whose queue pairs are gone before it; one thread.

#ifndef VERBENA_TRANSPORT_LINK_ATOMIC_SCRATCH_H_
#define VERBENA_TRANSPORT_LINK_ATOMIC_SCRATCH_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/memory/arena.h"

namespace verbena::internal {

// One link's words.
struct AtomicWords {
  uint64_t* first = nullptr;  // of kMaxReads; null if the device has no atomics
  uint32_t lkey = 0;
};

class AtomicScratch {
 public:
  // Empty if the device has no atomics.
  static absl::StatusOr<AtomicScratch> Create(Device& device, ibv_pd* pd, uint32_t max_links);
  AtomicScratch() = default;
  AtomicScratch(AtomicScratch&&) noexcept = default;
  AtomicScratch& operator=(AtomicScratch&&) noexcept = default;
  ~AtomicScratch();

  // `slot` is the link's, below max_links.
  AtomicWords Of(uint32_t slot) const;

 private:
  explicit AtomicScratch(Arena arena);

  Arena arena_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_ATOMIC_SCRATCH_H_
