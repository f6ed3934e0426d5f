// ClientLink: the calling side of one link: the table of calls in flight, and what answers them.
//
// Each call has a slot and the slot's generation, which travel with the request and come back in
// the response. A response of a past generation is late (its call was cancelled or timed out):
// counted, harmless. One of a slot that does not exist or of a generation yet to come is a lie, and
// closes the link. What a call that was given up had lent stays lent until its late response.
//
// Owned by a Connection, on its executor's thread; lives until its link is down. Bounded by
// kMaxCallsInFlight.

#ifndef VERBENA_RPC_CLIENT_LINK_H_
#define VERBENA_RPC_CLIENT_LINK_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/lent_landings.h"
#include "verbena/transport/coro/bounded_vector.h"
#include "verbena/transport/link/lease.h"
#include "verbena/transport/link/link.h"

namespace verbena {

class ClientCall;

// Leases that outlive their call. Most calls have one or two.
using LeaseList = absl::InlinedVector<Lease*, 2>;

struct CallId {
  uint32_t slot = 0;
  uint32_t generation = 0;
};

struct ClientLinkStats {
  uint64_t calls = 0;
  uint64_t late_responses = 0;
};

class ClientLink final : public FrameSink, private SendWaiter {
 public:
  static constexpr uint32_t kMaxCallsInFlight = 1u << 16;
  static constexpr size_t kMaxQueuedCancels = 4096;

  // Who hears that the link is lost, or that its peer wants no more calls.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void OnClientLinkDown(ClientLink& link, const absl::Status& reason) = 0;
    virtual void OnClientLinkDraining(ClientLink& link) = 0;
    // A draining link has no calls left.
    virtual void OnClientLinkIdle(ClientLink& link) = 0;
  };

  explicit ClientLink(Owner& owner) : owner_(owner) {}
  ~ClientLink() override;

  void Attach(Link& link) { link_ = &link; }
  // nullptr once it is down.
  Link* link() const { return link_; }
  // May take new calls.
  bool usable() const { return link_ != nullptr && link_->open() && !draining_; }

  // Takes a slot; false when kMaxCallsInFlight are taken.
  bool Register(ClientCall& call, CallId* id);
  void Release(CallId id);
  // Tells the server that nobody waits for `id` any more. Best effort: the deadline travelled too.
  void SendCancel(CallId id);

  // What the server has lent for payloads of requests to come.
  LentLandings& landings() { return landings_; }
  const LentLandings& landings() const { return landings_; }

  // Keeps the leases of a call that was given up until its final frame comes.
  void Quarantine(CallId id, const LeaseList& leases);

  uint32_t calls_in_flight() const { return in_flight_; }
  const ClientLinkStats& stats() const { return stats_; }

  // FrameSink
  absl::Status OnFrame(Link& link, const FrameHeader& frame, const char* body) override;
  void OnLinkDown(Link& link, const absl::Status& reason) override;
  bool ExpectsFrames() const override { return in_flight_ > 0 || !quarantine_.empty(); }

 private:
  struct Slot {
    ClientCall* call = nullptr;
    uint32_t generation = 0;
  };

  // What not every call needs is made out of line, so that what all do stays small.
  [[gnu::cold, gnu::noinline]] uint32_t AddSlot();
  [[gnu::noinline]] absl::Status OnOtherFrame(Link& link, const FrameHeader& frame,
                                              const char* body);
  // Of a call that has ended, if it ever was.
  [[gnu::cold, gnu::noinline]] absl::Status OnLateResponse(const FrameHeader& frame);
  void OnWritable(Link& link) override;
  // The call that a frame is for; nullptr when it has ended. An error when it never was.
  absl::StatusOr<ClientCall*> Find(const FrameHeader& frame) const;
  absl::Status OnResponse(const FrameHeader& frame, const char* body);
  absl::Status OnLandingNeeded(const FrameHeader& frame, const char* body);
  void EndQuarantine(const FrameHeader& frame);

  Owner& owner_;
  Link* link_ = nullptr;
  bool draining_ = false;
  uint32_t in_flight_ = 0;
  std::vector<Slot> slots_;
  BoundedVector<uint32_t> free_;  // last in, first out: few slots stay in the cache
  std::deque<CallId> cancels_;
  // By slot and generation. Bounded by what the link lends (LeaseLimits).
  absl::flat_hash_map<uint64_t, LeaseList> quarantine_;
  LentLandings landings_;
  ClientLinkStats stats_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_CLIENT_LINK_H_
