// GrantsGiven: grants landings to the client of one link, ahead of its requests, so that their
// payloads are written before the request is sent: one round trip; reading takes two.
//
// The server begins without grants and follows use. For each payload that came it grants a landing
// of that size, so that a client has as many as it had payloads on their way at once. When memory
// is short, it revokes them. Bounded by LeaseLimits::granted_bytes_per_client for all links of a
// client, by slots, by what the client's source address may have (clients.h), and by half of
// the receive budget for all clients of the executor. A landing counts until its memory is free,
// also if its link is lost before.
//
// Part of a ServerSession, on its executor's thread.

#ifndef VERBENA_RPC_SERVER_LANDINGS_H_
#define VERBENA_RPC_SERVER_LANDINGS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/server/clients.h"
#include "verbena/transport/coro/quota.h"
#include "verbena/transport/link/leases.h"
#include "verbena/transport/link/listener.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class Link;

// A landing that a request has used. Its holder must end the lease by Link::EndLease(), and give
// the hold back when the request's handler has ended, or, if no handler got the landing, when its
// memory is free.
struct UsedGrant {
  Buffer buffer;
  Lease* lease = nullptr;
  QuotaHold hold;
};

// Gives `hold`, which `client` has for a landing, back when its memory is free, and no sooner. If
// `holders` is not null, the landing's bytes count among its grants until then.
//
// The peer of a lost link may still write to what it was granted, so the link's leases keep that
// memory until its queue pair is gone. A client that closes its links and connects anew must not be
// granted more meanwhile. On the thread of the executor that has the memory.
void ReturnWithMemory(Buffer landing, QuotaHold hold, ServerClient& client,
                      std::shared_ptr<MemoryHolders> holders);

// Returns a landing, if there is one, whose call was refused. Its link is open.
void ReturnUnused(UsedGrant landing, Link& link, ServerClient& client);

class GrantsGiven final : private SendWaiter {
 public:
  // The grants of `holders` are the bytes granted over all links of the executor. `client`
  // counts the bytes that are granted over its links, and the bytes of used landings that
  // calls hold. It outlives this.
  GrantsGiven(std::shared_ptr<MemoryHolders> holders, ServerClient& client)
      : holders_(std::move(holders)), client_(client) {}
  GrantsGiven(const GrantsGiven&) = delete;
  GrantsGiven& operator=(const GrantsGiven&) = delete;
  ~GrantsGiven() override;

  // A payload of `bytes`, not 0, has come: grants a landing for the next one, if there is memory to
  // spare.
  void Offer(Link& link, size_t bytes);
  // The landing that a request used; its payload takes `bytes` of it. INVALID_ARGUMENT when it is
  // not granted, or smaller.
  absl::StatusOr<UsedGrant> Use(uint32_t slot, uint64_t bytes);
  // The client returns one. INVALID_ARGUMENT when it is not granted.
  absl::Status OnReturn(Link& link, uint32_t slot);
  // Asks the client to return all.
  void Revoke(Link& link);
  void OnLinkDown();

  // Landings that are granted now.
  size_t count() const;

 private:
  struct Slot {
    Buffer buffer;
    Lease* lease = nullptr;  // null: not granted
    QuotaHold hold;
    bool told = false;  // the client knows of it
    bool revoked = false;
    bool revoke_due = false;
  };

  uint32_t FreeSlot() const;
  // False if there is no slot, lease or memory for it.
  bool Grant(Link& link, size_t size, QuotaHold hold);
  void Tell(Link& link);
  // Each appends one frame; false if there is no room.
  bool AppendGrant(Link& link, uint32_t slot);
  bool AppendRevoke(Link& link, uint32_t slot);
  void OnWritable(Link& link) override;
  void Forget(Slot& slot);

  const std::shared_ptr<MemoryHolders> holders_;
  ServerClient& client_;
  std::array<Slot, kMaxGrantSlots> slots_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_LANDINGS_H_
