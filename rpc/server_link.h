// ServerLink: the serving side of one link: its calls in progress, by the caller's slot.
//
// Owned by its ServerShard, on that executor's thread. It outlives its link until the last handler
// has ended, since handlers are cancelled, never destroyed. Bounded by the caller's slots
// (ClientLink::kMaxCallsInFlight) and the shard's limit on concurrent requests.

#ifndef VERBENA_RPC_SERVER_LINK_H_
#define VERBENA_RPC_SERVER_LINK_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/client_link.h"
#include "verbena/rpc/landing_lender.h"
#include "verbena/rpc/outcome.h"
#include "verbena/rpc/server_call.h"
#include "verbena/transport/coro/intrusive_list.h"
#include "verbena/transport/link/link.h"

namespace verbena {

class ServerShard;

class ServerLink final : public FrameSink, private SendWaiter {
 public:
  // Refusals that wait for room. A client whose window is full cannot cause more; past it the link
  // closes.
  static constexpr size_t kMaxQueuedRefusals = 4096;

  // `number` tells it from every other of its shard, also from one at the address of one that is
  // gone.
  ServerLink(ServerShard& shard, std::string peer, uint64_t number);
  ~ServerLink() override;

  void Attach(Link& link) { link_ = &link; }
  // nullptr before the handshake's end brought it, and once it is down.
  Link* link() const { return link_; }
  const std::string& peer() const { return peer_; }
  uint64_t number() const { return number_; }
  bool idle() const { return active_.empty(); }

  // Tells the client to start no more calls here.
  void SendGoAway();
  void CancelAll();
  void OnCallDone(ServerCall& call);
  // A request's payload of `bytes` has come: lends memory for the next one. Only while open.
  void OfferLanding(size_t bytes) { lender_.Offer(*link_, bytes); }
  // This executor is short of memory for payloads: asks the clients of the same device for what
  // was lent ahead.
  void ReclaimLandings();
  void RevokeLandings();

  // FrameSink
  absl::Status OnFrame(Link& link, const FrameHeader& frame, const char* body) override;
  void OnLinkDown(Link& link, const absl::Status& reason) override;
  // A server owes answers; it waits for none.
  bool ExpectsFrames() const override { return false; }

 private:
  struct Refusal {
    CallId id;
    uint8_t code;
    std::string body;
  };

  bool MayUseSlot(const FrameHeader& frame);
  absl::Status StartCall(const FrameHeader& frame, const char* body, IncomingBulk* bulk);
  // What not every call needs is made out of line, so that what all do stays small.
  [[gnu::noinline]] absl::Status OnOtherFrame(Link& link, const FrameHeader& frame,
                                              const char* body);
  // False when there is no such slot.
  [[gnu::cold, gnu::noinline]] bool AddSlots(uint32_t slot);
  [[gnu::cold, gnu::noinline]] absl::Status SlotMisused(const FrameHeader& frame) const;
  [[gnu::noinline]] absl::Status OnBulkRequest(const FrameHeader& frame, const char* body);
  [[gnu::cold, gnu::noinline]] absl::Status RefuseRequest(const FrameHeader& frame,
                                                          IncomingBulk* bulk);
  void OnCancelFrame(const FrameHeader& frame);
  absl::Status OnLandingFrame(const FrameHeader& frame, const char* body);
  absl::Status Refuse(CallId id, const absl::Status& status);
  void OnWritable(Link& link) override;

  ServerShard& shard_;
  const std::string peer_;
  const uint64_t number_;
  Link* link_ = nullptr;
  IntrusiveList<ServerCall> active_;
  std::vector<ServerCall*> by_slot_;
  std::deque<Refusal> refusals_;
  bool go_away_due_ = false;
  LandingLender lender_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_SERVER_LINK_H_
