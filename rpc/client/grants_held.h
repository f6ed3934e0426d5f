// GrantsHeld: the landings that a link's server has granted its client ahead, for the payloads of
// requests to come.
//
// The request that names a grant's slot uses it, once; or the client returns it. Then the server
// may grant the slot anew. Part of a ClientSession, on its executor's thread. Bounded by
// kMaxGrantSlots.

#ifndef VERBENA_RPC_CLIENT_GRANTS_HELD_H_
#define VERBENA_RPC_CLIENT_GRANTS_HELD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/transfer.h"

namespace verbena::internal {

struct HeldGrant {
  uint32_t slot = 0;
  RemoteRange range{};
};

class GrantsHeld final : private SendWaiter {
 public:
  // A payload takes no grant of more than this many times its size, which would keep memory from
  // others.
  static constexpr size_t kMaxWaste = 4;

  GrantsHeld() = default;
  ~GrantsHeld() override = default;

  // Whether Take() would give one now.
  bool Fits(size_t bytes) const { return Find(bytes) != kMaxGrantSlots; }
  // Takes the smallest grant for `bytes`, which are not 0. The caller must send a request that uses
  // the grant, or return it.
  std::optional<HeldGrant> Take(size_t bytes);
  // Returns a grant, behind the WRITEs to it. Only while the link is open.
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
  void Free(uint32_t slot) { taken_slots_ &= static_cast<uint16_t>(~(1u << slot)); }

  std::array<RemoteRange, kMaxGrantSlots> held_{};  // no bytes: no grant
  // A bit for each slot that is not the server's again: held, taken, or to be returned.
  uint16_t taken_slots_ = 0;
  // To be returned when there is room: at most every slot once.
  std::array<HeldGrant, kMaxGrantSlots> returned_{};
  uint32_t returned_count_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_GRANTS_HELD_H_
