// Copies that peers were in the middle of when they lost the permission: CopyUnderWay, one of them,
// and Quiescence, which knows those that QPs left behind.
//
// Until such a copy is over, its bytes may still land.

#ifndef VERBENA_TRANSPORT_SOFT_COPIES_UNDER_WAY_H_
#define VERBENA_TRANSPORT_SOFT_COPIES_UNDER_WAY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/peer.h"

namespace verbena::internal::soft {

// CopyUnderWay: a copy that a peer was in the middle of when it lost the permission for it.
//
// Whoever withdrew the permission keeps a list of such copies, and asks over(). The list is made
// under the lock of the receive CQ (InLane::FindCopyUnderWay); any thread may ask.
struct CopyUnderWay {
  std::shared_ptr<Peer> peer;
  // LaneHeader::copying of its lane, and what that was.
  std::shared_ptr<const std::atomic<uint64_t>> copying;
  uint64_t sequence = 0;

  bool Is(const CopyUnderWay& other) const {
    return copying == other.copying && sequence == other.sequence;
  }
  bool over() const { return copying->load(std::memory_order_acquire) != sequence || peer->gone(); }
};

// Forgets those that are over. True when none is left.
bool AllOver(std::vector<CopyUnderWay>& copies);

// Quiescence: which QPs peers may still write through: those in service, and those that left copies
// behind when they went out of service.
//
// Owned by the SoftState; any thread. It has an entry for each QP in service, and for each whose
// copies are not over, or were not asked about since.
class Quiescence {
 public:
  // Peers may write through the QP from now on.
  void Enter(QpIdentity qp);
  // No peer begins a copy through the QP any more; `copies` are those under way.
  void Leave(QpIdentity qp, std::vector<CopyUnderWay> copies);
  // True when no byte can land through the QP any more.
  bool Quiesced(QpIdentity qp);
  // Somebody has waited for the copies of the QP in vain: the peers that make them are frozen.
  void GiveUp(QpIdentity qp);
  // Whether each copy that the QP left behind was given up, through this QP or another, and goes
  // on. Another wait for these is not worth its time.
  bool GivenUp(QpIdentity qp);
  // Adds all copies that QPs left behind, whichever QPs.
  void AddCopies(std::vector<CopyUnderWay>& copies);

 private:
  std::mutex mutex_;  // a leaf
  std::unordered_set<QpIdentity> in_service_;
  std::unordered_map<QpIdentity, std::vector<CopyUnderWay>> left_behind_;
  std::vector<CopyUnderWay> given_up_;  // each once; those that are over go at the next call
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_COPIES_UNDER_WAY_H_
