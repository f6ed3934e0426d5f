// DirectCopy: one-sided operations executed by their initiator, in the target's memory.
//
// A copy runs in chunks. Around each chunk the initiator announces in the lane that it is copying,
// and checks the target's tables in between (memory_table.h). So a target that withdraws its
// permission knows whether one more chunk may still land, and waits for no more than that. A frozen
// initiator is frozen inside at most one chunk.
//
// Runs under the send CQ's lock.

#ifndef VERBENA_TRANSPORT_SOFT_DIRECT_COPY_H_
#define VERBENA_TRANSPORT_SOFT_DIRECT_COPY_H_

#include <cstdint>

#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/memory_table.h"

namespace verbena::internal::soft {

inline constexpr uint64_t kMaxChunkBytes = 256 * 1024;

class DirectCopy {
 public:
  explicit DirectCopy(OutLane& lane) : lane_(lane) {}

  // True when the target has the lane, its tables allow `access`, and its memory can be reached
  // from here.
  bool Possible(const RemoteAccess& access) const;

  // Copies at most kMaxChunkBytes between `local` and the memory that `access` names: to the target
  // for IBV_ACCESS_REMOTE_WRITE, otherwise from it. False if the copy is not, or no longer, allowed
  // or possible. The target, asked through the ring, then says which.
  bool Chunk(const RemoteAccess& access, void* local);

  // Both return the old value in `old`. False as above.
  bool CompareSwap(const RemoteAccess& access, uint64_t compare, uint64_t swap, uint64_t& old);
  bool FetchAdd(const RemoteAccess& access, uint64_t add, uint64_t& old);

 private:
  template <typename Operation>
  bool Announced(const RemoteAccess& access, Operation operation);

  OutLane& lane_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_DIRECT_COPY_H_
