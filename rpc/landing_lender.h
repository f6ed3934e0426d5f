// LandingLender: lends landings to the client of one link, ahead of its requests, so that their
// payloads are written before the request is sent: one round trip, where reading takes two.
//
// The lender begins without landings and follows use. For each payload that came it offers a
// landing of that size, so that a client has as many as it had payloads on their way at once. When
// memory is short, it asks for them back. Bounded by LeaseLimits::granted_bytes_per_link for all
// links of a client, by slots, by what the client's source address may have (server_source.h), and
// by half of the receive budget for all clients of the executor.
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
#include "verbena/rpc/server_client.h"
#include "verbena/transport/link/lease.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

// A landing that a request has used. Its holder must end the lease by Link::EndLease(), and take
// the bytes off the client's share once the memory is free or the handler's own.
struct UsedLanding {
  Buffer buffer;
  Lease* lease = nullptr;
  size_t bytes = 0;
};

class LandingLender final : private SendWaiter {
 public:
  // `shard_bytes` counts the bytes that all lenders of the executor have lent. `client` counts the
  // bytes that the lenders of its links have lent, and the bytes of used landings that calls hold.
  // Both outlive this.
  LandingLender(size_t& shard_bytes, ServerClient& client)
      : shard_bytes_(shard_bytes), client_(client) {}
  LandingLender(const LandingLender&) = delete;
  LandingLender& operator=(const LandingLender&) = delete;
  ~LandingLender() override;

  // A payload of `bytes`, not 0, has come: lends a landing for the next one, if there is memory to
  // spare.
  void Offer(Link& link, size_t bytes);
  // The landing that a request used; its payload takes `bytes` of it. INVALID_ARGUMENT when it is
  // not lent, or smaller.
  absl::StatusOr<UsedLanding> Use(uint32_t slot, uint64_t bytes);
  // The client gives one back. INVALID_ARGUMENT when it is not lent.
  absl::Status OnReturn(Link& link, uint32_t slot);
  // Asks for all landings back.
  void Revoke(Link& link);
  void OnLinkDown();

  // Landings that are lent now.
  size_t lent() const;

 private:
  struct Slot {
    Buffer buffer;
    Lease* lease = nullptr;  // null: not lent
    bool told = false;       // the client knows of it
    bool revoked = false;
    bool revoke_due = false;
  };

  uint32_t FreeSlot() const;
  // False if there is no slot, lease or memory for it.
  bool Lend(Link& link, size_t size);
  void Tell(Link& link);
  // Appends what is due; what finds no room waits.
  bool AppendGrant(Link& link, uint32_t slot);
  bool AppendRevoke(Link& link, uint32_t slot);
  void OnWritable(Link& link) override;
  void Forget(Slot& slot);

  size_t& shard_bytes_;
  ServerClient& client_;
  std::array<Slot, LentLandings::kMaxSlots> slots_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_LANDING_LENDER_H_
