// Landings at the client. GrantsHeld: the landings that a server granted for payloads of requests.
// AllocateLanding: memory that a server asks for.
//
// A ClientSession owns a GrantsHeld, and a connection and its calls share a quota of the memory, on
// the executor's thread. kMaxGrantSlots bounds the slots.

#ifndef VERBENA_RPC_CLIENT_LANDINGS_H_
#define VERBENA_RPC_CLIENT_LANDINGS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/quota.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/listener.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/link/wire_format.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class Endpoint;
class Link;

struct HeldGrant {
  uint32_t slot = 0;
  RemoteRange range{};
};

// GrantsHeld: the landings that a link's server has granted its client ahead, for the payloads of
// requests to come.
//
// A grant ends when a request names its slot, or the client returns it. Then the server may grant
// the slot anew. Part of a ClientSession, on its executor's thread. Bounded by kMaxGrantSlots.
class GrantsHeld final : private SendWaiter {
 public:
  // A payload takes no grant of more than this many times its size: that would keep memory from
  // others.
  static constexpr size_t kMaxWaste = 4;

  GrantsHeld() = default;
  ~GrantsHeld() override = default;

  // Whether Take() would give one now.
  bool Fits(size_t bytes) const { return Find(bytes) != kMaxGrantSlots; }
  // Takes the smallest grant for `bytes`, which are not 0. The caller must send a request that uses
  // the grant, or return it.
  std::optional<HeldGrant> Take(size_t bytes);
  // Returns a grant, behind the WRITEs to it. Precondition: the link is open.
  void Return(Link& link, const HeldGrant& landing);

  // The request that names the slot was appended, which ends the grant.
  void OnUsed(const HeldGrant& landing) { Free(landing.slot); }

  // Frames from the server. INVALID_ARGUMENT when it breaks the protocol.
  absl::Status OnGrant(const Link& link, const FrameHeader& frame, const char* body);
  absl::Status OnRevoke(Link& link, const FrameHeader& frame);
  void OnLinkDown();

 private:
  void OnWritable(Link& link) override;
  uint32_t Find(size_t bytes) const;
  void AwaitReturn(Link& link);
  // The server may grant the slot anew.
  void Free(uint32_t slot) {
    VERBENA_CHECK((taken_slots_ >> slot & 1) != 0) << "slot " << slot << " is the server's";
    taken_slots_ &= static_cast<uint16_t>(~(1u << slot));
  }

  std::array<RemoteRange, kMaxGrantSlots> held_{};  // no bytes: no grant
  // A bit for each slot that is not the server's again: held, taken, or to be returned.
  uint16_t taken_slots_ = 0;
  // To be returned when there is room: at most every slot once.
  std::array<HeldGrant, kMaxGrantSlots> returned_{};
  uint32_t returned_count_ = 0;
};

// A buffer of `bytes` from the landing memory of `endpoint`, which counts in `quota` until its
// memory is free: also in quarantine, and while the caller keeps the payload in it. Fails as
// AllocateWithin().
//
// A server whose response needs more memory than its call leased asks for a landing, and names its
// size. A server that asks and never answers would take all of the memory. So each connection has a
// quota for such landings.
Task<absl::StatusOr<Buffer>> AllocateLanding(std::shared_ptr<Quota> quota, const Endpoint& endpoint,
                                             size_t bytes, MemoryWait wait);
// AllocateLanding() without waiting.
absl::StatusOr<Buffer> TryAllocateLanding(const std::shared_ptr<Quota>& quota,
                                          const Endpoint& endpoint, size_t bytes);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_LANDINGS_H_
