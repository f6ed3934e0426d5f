// The serving side of one link: ServerSession, its calls by slot.
//
// A ServerShard owns them, on that executor's thread. At most kMaxCallsInFlight calls, and the
// CallPool's limit on calls.

#ifndef VERBENA_RPC_SERVER_SESSION_H_
#define VERBENA_RPC_SERVER_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/call.h"
#include "verbena/rpc/server/call_link.h"
#include "verbena/rpc/server/clients.h"
#include "verbena/rpc/server/landings.h"
#include "verbena/rpc/server/refusals.h"
#include "verbena/rpc/server/state.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

class Endpoint;

// Handlers that run, by the method's full name.
using RunningHandlers = absl::btree_map<std::string, uint32_t>;

// ServerSession: the serving side of one link: its calls in progress, by the caller's slot.
//
// Owned by its ServerShard, on that executor's thread. It outlives its link until the last handler
// has ended, since handlers are cancelled, never destroyed. Bounded by the caller's slots
// (kMaxCallsInFlight) and the CallPool's limit on calls.
class ServerSession final : public LinkListener, public CallLink, private SendWaiter {
 public:
  // The owner of all sessions of an executor hears of each session here.
  class Owner {
   public:
    // The link is open: link_identity() tells it from now on.
    virtual void OnSessionOpen(ServerSession& session) = 0;
    // The link is down. The session is freed once it is idle().
    virtual void OnSessionDown(ServerSession& session) = 0;
    // A session whose link is down has no calls left.
    virtual void OnSessionIdle(ServerSession& session) = 0;
    // Asks every client on `endpoint` to return its grants, unless all were asked since the last
    // OnGrant(): not every call that finds memory short walks over the links.
    virtual void ReclaimGrants(const Endpoint& endpoint) = 0;
    // Asks every client of `source` likewise.
    virtual void ReclaimGrants(ServerSource& source) = 0;
    // A landing was granted.
    virtual void OnGrant() = 0;

   protected:
    ~Owner() = default;
  };

  // `number` tells this object from every other of its owner, also from a former one at the same
  // address. The references outlive it.
  ServerSession(Owner& owner, ServerState& state, CallPool& calls,
                std::shared_ptr<ServerClient> client, std::string peer, uint64_t number);
  ~ServerSession() override;

  // Ends its link, unless that is down.
  void CloseLink(const absl::Status& reason) {
    if (link_ != nullptr) link_->Close(reason);
  }
  // The call that runs in that slot, if it has that generation; otherwise nullptr.
  ServerCall* Find(CallId id) const {
    ServerCall* const call = by_slot_.Find(id.slot);
    return call != nullptr && call->id().generation == id.generation ? call : nullptr;
  }
  // Tells its link from every other, also once the link is down; 0 before OnLinkOpen().
  uint64_t link_identity() const { return link_ != nullptr ? link_->identity() : lost_link_; }
  // Whether its link is one of `endpoint`.
  bool uses(const Endpoint& endpoint) const {
    return link_ != nullptr && &link_->endpoint() == &endpoint;
  }
  uint64_t number() const { return number_; }
  bool idle() const { return active_.empty(); }

  // Tells the client to start no more calls here.
  void SendGoAway();
  void CancelAll();
  void CountRunning(RunningHandlers& running);
  void RevokeGrants();

  // CallLink
  void RefuseQueued(CallId id, RefusalReason reason) override;
  void OfferLanding(size_t bytes) override;
  // Asks the clients of this one's source address for their grants, if that has too few bytes.
  void OnQuotaShort(const Quota& quota) override;
  // This executor is short of memory for payloads: asks the clients of the same device.
  void OnPoolShort() override;

  // LinkListener
  void OnLinkOpen(Link& link) override;
  absl::Status OnFrame(Link& link, const FrameHeader& frame, const char* body) override;
  const char* MethodOf(const FrameHeader& frame) const override;
  void OnLinkDown(Link& link, const absl::Status& reason) override;
  // While a call, a stream's Read or Write, or a refusal waits for the client. A client that only
  // waits for a handler may be as quiet as it likes.
  bool ExpectsFrames() const override;
  // Calls run, or an application lends memory over it.
  bool InUse(const Link& link) const override;
  // Tells the client to close; a client that does not loses the link the next time.
  bool OnIdle(Link& link) override;

 private:
  template <typename Visit>
  void ForEachCall(Visit visit);
  void AddCall(uint32_t slot, ServerCall& call) {
    by_slot_.Add(slot, call);
    active_.PushBack(call);
  }
  // Rare paths are out of line to keep the hot path small.
  [[gnu::noinline]] absl::Status OnOtherFrame(Link& link, const FrameHeader& frame,
                                              const char* body);
  // A request that OnFrame() does not start itself: it has more than a message, its slot is in use,
  // or the short CallPool::Admit() refused it.
  [[gnu::noinline]] absl::Status OnRequest(const FrameHeader& frame, const char* body);
  absl::Status OnStreamFrame(Link& link, const FrameHeader& frame, const char* body);
  void OnCallEndedWithoutLink() override;
  void OnCancelFrame(const FrameHeader& frame);
  absl::Status OnLandingFrame(const FrameHeader& frame, const char* body);
  void OnWritable(Link& link) override;

  Owner& owner_;
  ServerState& state_;
  CallPool& calls_;
  const uint64_t number_;
  IntrusiveList<ServerCall> active_;
  Refusals refusals_;
  uint64_t lost_link_ = 0;   // the link, once it is down
  bool told_idle_ = false;   // by OnIdle()
  bool going_down_ = false;  // in OnLinkDown(), which decides at its end whether this is idle
  GrantsGiven grants_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_SESSION_H_
