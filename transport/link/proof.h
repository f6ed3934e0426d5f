// LinkProof: the round trips by which a client's new link shows that it carries SENDs.
//
// Queue pairs are connected by what the bootstrap said, so they open also where nothing passes
// between them: behind a wrong neighbour entry, a firewall, or a switch with a smaller MTU. The
// first round trip is a bare PING. In the second one PING and PONG fill a packet of the path, or
// the longest SEND if that is shorter, if the peer takes padding (kFeaturePaddedPing). So a failure
// can tell a path that carries nothing from one that carries short packets alone. Both SENDs of the
// second round trip need ordinary send buffers: the proof also fails if a side finds none before
// the limit.
//
// Owned by the coroutine of Endpoint::Connect(), on the thread of the endpoint's executor. It never
// holds the link across an await. A link that has not proven itself is closed by the destructor:
// also after an exception, or if the coroutine is destroyed. One for each link that is being made.
//
//   LinkProof proof(*this, links_, link->key());
//   co_return co_await proof.Await(limit);

#ifndef VERBENA_TRANSPORT_LINK_PROOF_H_
#define VERBENA_TRANSPORT_LINK_PROOF_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/host.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/links.h"
#include "verbena/transport/link/listener.h"

namespace verbena::internal {

class LinkProof final : private PongWaiter {
 public:
  // For the link of that key, which has opened, and may be lost. `host` and `links` outlive the
  // proof.
  LinkProof(LinkHost& host, LinkTable& links, LinkKey key);
  LinkProof(const LinkProof&) = delete;
  LinkProof& operator=(const LinkProof&) = delete;
  ~LinkProof() override;

  // The time at which the proof was made. If that was in a long turn of the executor, it is later
  // than the begin of the turn.
  TimePoint begun() const { return begun_; }
  // Returns the link once it has proven itself. UNAVAILABLE: it has not until `limit`, or was lost
  // before. Call it once.
  Task<absl::StatusOr<Link*>> Await(TimePoint limit);

 private:
  // nullptr if the link is lost.
  Link* Find() const;
  absl::Status Lost() const;
  Task<absl::Status> RoundTrip(uint32_t padding, TimePoint limit);
  // Why the link has not proven itself: a PING with so much padding got no answer, in time or
  // before the device gave the link up.
  absl::Status Unanswered(uint32_t padding) const;

  void OnPong(uint32_t padding) override;
  void OnLinkLost(const absl::Status& reason) override;

  LinkHost& host_;
  LinkTable& links_;
  const LinkKey key_;
  const TimePoint begun_;
  std::string peer_;
  uint32_t packet_bytes_ = 0;
  uint32_t wanted_ = 0;   // the padding of the PONG that is awaited
  Event ended_;           // that PONG has come, or the link is lost
  absl::Status loss_;     // why the link was lost, if it was
  bool broken_ = false;   // it was, by the device or its path
  absl::Status failure_;  // why the link closes, if it does
  bool proven_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_PROOF_H_
