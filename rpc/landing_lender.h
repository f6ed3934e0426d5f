// LandingLender: lends landings to the client of one link, ahead of its requests, so that their
// payloads are written before the request is sent: one round trip, where reading takes two.
//
// It begins with none and follows use: each payload that came makes it offer a landing of that
// size, so that a client has as many as it had payloads on their way at once. When memory is short
// they are asked back. Bounded by LeaseLimits::granted_bytes_per_link, by slots, and by half of the
// receive budget for all clients of the executor.
//
// Part of a ServerLink, on its executor's thread.

#ifndef VERBENA_RPC_LANDING_LENDER_H_
#define VERBENA_RPC_LANDING_LENDER_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/lent_landings.h"
#include "verbena/transport/link/lease.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

// A landing that a request has used: its lease is to be ended, by Link::EndLease().
struct UsedLanding {
  Buffer buffer;
  Lease* lease = nullptr;
};

class LandingLender final : private SendWaiter {
 public:
  // `shard_bytes` counts what all lenders of the executor have lent; it outlives this.
  explicit LandingLender(size_t& shard_bytes) : shard_bytes_(shard_bytes) {}
  LandingLender(const LandingLender&) = delete;
  LandingLender& operator=(const LandingLender&) = delete;
  ~LandingLender() override;

  // A payload of `bytes`, not 0, has come: lends a landing for the next one, if there is memory to
  // spare.
  void Offer(Link& link, size_t bytes);
  // That of a request whose payload takes `bytes` of it. INVALID_ARGUMENT when it is not lent, or
  // smaller.
  absl::StatusOr<UsedLanding> Use(uint32_t slot, uint64_t bytes);
  // The client gives one back. INVALID_ARGUMENT when it is not lent.
  absl::Status OnReturn(Link& link, uint32_t slot);
  // Asks for all of them.
  void Revoke(Link& link);
  void OnLinkDown();

  size_t lent_bytes() const { return lent_bytes_; }

 private:
  struct Slot {
    Buffer buffer;
    Lease* lease = nullptr;  // null: not lent
    bool told = false;       // the client knows of it
    bool revoked = false;
    bool revoke_due = false;
  };

  uint32_t FreeSlot() const;
  void Tell(Link& link);
  // Appends what is due; what finds no room waits.
  bool AppendGrant(Link& link, uint32_t slot);
  bool AppendRevoke(Link& link, uint32_t slot);
  void OnWritable(Link& link) override;
  void Forget(Slot& slot);

  size_t& shard_bytes_;
  size_t lent_bytes_ = 0;
  std::array<Slot, LentLandings::kMaxSlots> slots_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_LANDING_LENDER_H_
