// LentLandings: the landings that a link's server has granted its client ahead, for the payloads of
// requests to come.
//
// The request that names a landing's slot uses it, once; or the client gives it back. Then the
// server may grant the slot anew. Part of a ClientLink, on its executor's thread. Bounded by
// kMaxSlots.

#ifndef VERBENA_RPC_LENT_LANDINGS_H_
#define VERBENA_RPC_LENT_LANDINGS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/transfer.h"

namespace verbena {

struct LentLanding {
  uint32_t slot = 0;
  RemoteRange range{};
};

class LentLandings final : private SendWaiter {
 public:
  static constexpr uint32_t kMaxSlots = 16;
  // A payload takes no landing of more than this many times its size: memory that it would keep
  // from others.
  static constexpr size_t kMaxWaste = 4;

  LentLandings() = default;
  ~LentLandings() override = default;

  // Whether Take() would give one now.
  bool Fits(size_t bytes) const { return Find(bytes) != kMaxSlots; }
  // Takes the smallest landing for `bytes`, which are not 0. Whoever takes it sends a request with
  // it, or gives it back.
  std::optional<LentLanding> Take(size_t bytes);
  // Gives a landing back, behind the WRITEs to it. Only while the link is open.
  void Return(Link& link, const LentLanding& landing);

  // The request that names the slot was appended, which ends the grant.
  void OnUsed(const LentLanding& landing) { Free(landing.slot); }

  // Frames from the server. INVALID_ARGUMENT when it breaks the protocol.
  absl::Status OnGrant(const Link& link, const FrameHeader& frame, const char* body);
  absl::Status OnRevoke(Link& link, const FrameHeader& frame);
  void OnLinkDown();

 private:
  void OnWritable(Link& link) override;
  uint32_t Find(size_t bytes) const;
  void AwaitReturn(Link& link);
  // The server may grant the slot anew.
  void Free(uint32_t slot) { lent_ &= static_cast<uint16_t>(~(1u << slot)); }

  std::array<RemoteRange, kMaxSlots> held_{};  // without bytes: none
  // A bit for each slot that is not the server's again: held, taken, or to be returned.
  uint16_t lent_ = 0;
  // To be returned when there is room: at most every slot once.
  std::array<LentLanding, kMaxSlots> returned_{};
  uint32_t returned_count_ = 0;
};

}  // namespace verbena

#endif  // VERBENA_RPC_LENT_LANDINGS_H_
