// Landings at the client. GrantsHeld: the landings that a server granted for payloads of requests.
// LandingShare: the memory that a server may ask for.
//
// A ClientSession owns a GrantsHeld, and a connection and its calls share a LandingShare, on the
// executor's thread. kMaxGrantSlots bounds the slots, and each connection has a bound for the
// memory.

#ifndef VERBENA_RPC_CLIENT_LANDINGS_H_
#define VERBENA_RPC_CLIENT_LANDINGS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/memory.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

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

// LandingShare: the landing memory that one server may have asked one executor for.
//
// A server whose response needs more memory than its call leased asks for a landing, and names its
// size. A server that asks and never answers would take all of the memory. So each connection has a
// bound for such landings. A landing counts until its memory is free again: also in quarantine, and
// while the caller keeps the payload in it. Shared by a connection and its calls; on its executor's
// thread.
class LandingShare final : public std::enable_shared_from_this<LandingShare>,
                           private BlockListener {
 public:
  // `server` is for error messages.
  LandingShare(std::string server, size_t max_bytes)
      : server_(std::move(server)), max_bytes_(max_bytes), bytes_(max_bytes) {}
  LandingShare(const LandingShare&) = delete;
  LandingShare& operator=(const LandingShare&) = delete;

  // A buffer of `bytes` from the landing memory of `endpoint`. RESOURCE_EXHAUSTED if `wait` ends
  // before there is room within the bound, and memory: the message says who holds how much. A
  // buffer that is larger than the bound takes all of it. The share outlives the Task.
  Task<absl::StatusOr<Buffer>> Allocate(const Endpoint& endpoint, size_t bytes, MemoryWait wait);
  // Allocate() without waiting.
  absl::StatusOr<Buffer> TryAllocate(const Endpoint& endpoint, size_t bytes);

 private:
  void OnBlockHome(size_t capacity) override;
  size_t ShareOf(size_t capacity) const;
  // Counts `buffer`, whose share is taken, until its memory is free.
  void Count(Buffer& buffer);
  absl::Status Exhausted(size_t bytes, Duration waited) const;

  const std::string server_;
  const size_t max_bytes_;
  Semaphore bytes_;
  // Count the landings; self_ is set while there are any, since they may outlive the connection.
  size_t landings_ = 0;
  std::shared_ptr<LandingShare> self_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_LANDINGS_H_
