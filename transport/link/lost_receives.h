// LostReceives: finds receives that a device took with a queue pair and will never tell of.
//
// Some devices drop completions together with the queue pair that they belong to (mlx5, those that
// were not polled). Each such receive is one fewer for all links of the endpoint. When a link is
// freed that may have taken some along, the receives posted before are in doubt. They are found by
// order: a shared receive queue is used from its front, so when all older receives should be taken,
// each queue pair that still exists proves that it has none of the missing ones by receiving a
// newer one. Quiet peers are made to send by a PING. Then the missing ones are free again, or
// written off if a queue pair that the device did not destroy may have them (receive_doubt.h).
//
// Part of an Endpoint, on its executor's thread.

#ifndef VERBENA_TRANSPORT_LINK_LOST_RECEIVES_H_
#define VERBENA_TRANSPORT_LINK_LOST_RECEIVES_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/throttled_log.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link_table.h"
#include "verbena/transport/link/receive_ring.h"

namespace verbena::internal {

class LostReceives {
 public:
  // Receives beyond LinkLimits::srq_depth that `device` has room for.
  static uint32_t Spares(const LinkLimits& limits, const Device& device);

  // `device` and `links` outlive it.
  LostReceives(Device& device, LinkTable& links) : device_(device), links_(links) {}

  // Looks at `ring` from now on. `ring` must live until another one is followed, or this object is
  // used no more.
  void Follow(ReceiveRing& ring);

  // The link in `slot` is about to be freed. Its queue pair `qp` is destroyed, if the device could
  // do that, and its completion queue is empty. `told_of_last`: LAST_WQE had come before that queue
  // was emptied, so that no receive was left behind.
  void OnLinkFreed(LinkSlot& slot, bool told_of_last, QpIdentity qp);
  // The queue pair `qpn`, which may be gone by now, has received something while the ring is
  // in_doubt().
  void OnReceive(uint32_t qpn);
  // At each liveness check. Asks again for a proof that is owed, or closes the link.
  void Check(LinkSlot& slot);
  // Call after each of the three above. Returns how many receives are free again.
  uint32_t Settle(TimePoint now);

  // Whether too many may be lost, so that only new queues help. `in_service`: new ones could be
  // made. True at most once in a while.
  bool WantsNewQueues(TimePoint now, bool in_service);

 private:
  void AskForProofs();
  bool asked() const {
    return ring_->doubt().older_are_taken() && asked_for_doubt_ == ring_->doubt().number();
  }
  void ForgetQuiesced();
  uint32_t EndDoubt(TimePoint now);

  Device& device_;
  LinkTable& links_;
  ReceiveRing* ring_ = nullptr;
  uint32_t asked_for_doubt_ = 0;  // the doubt of ring_ that links owe a proof for
  uint32_t proofs_owed_ = 0;      // by so many queue pairs
  // Queue pairs that the device could not destroy, or not yet: no proof comes from them. Few: each
  // is lost to the device.
  std::vector<QpIdentity> unquiesced_;
  std::optional<TimePoint> replaced_;  // when new queues were last wanted
  ThrottledLog log_{{.lines = 2, .interval = std::chrono::seconds(10)}};
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LOST_RECEIVES_H_
