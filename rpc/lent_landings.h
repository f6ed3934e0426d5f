// LentLandings: what the server of one link has lent its client ahead, for the payloads of requests
// to come.
//
// Each is used once, by the request that names its slot, or given back; the server grants anew what
// it wants to. Part of a ClientLink, on its executor's thread. Bounded by kMaxSlots.

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
  // The smallest for `bytes`, which are not 0. Whoever takes it sends a request with it, or gives
  // it back.
  std::optional<LentLanding> Take(size_t bytes);
  // Behind whatever was written there. Only while the link is open.
  void Return(Link& link, const LentLanding& landing);

  // Frames from the server. INVALID_ARGUMENT when it breaks the protocol.
  absl::Status OnGrant(const Link& link, const FrameHeader& frame, const char* body);
  absl::Status OnRevoke(Link& link, const FrameHeader& frame);
  void OnLinkDown();

 private:
  void OnWritable(Link& link) override;
  uint32_t Find(size_t bytes) const;
  void AwaitReturn(Link& link);

  std::array<RemoteRange, kMaxSlots> held_{};  // without bytes: none
  // To be returned when there is room: at most every slot once.
  std::array<LentLanding, kMaxSlots> returned_{};
  uint32_t returned_count_ = 0;
};

}  // namespace verbena

#endif  // VERBENA_RPC_LENT_LANDINGS_H_
