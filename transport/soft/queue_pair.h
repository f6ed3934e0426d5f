// QueuePair: the ibv_qp of the soft device, reliable connected only.
//
// Two halves: the SendQueue under the send CQ's lock and the Responder under the receive CQ's. The
// state is read by both and changed under both locks, except that either half may move the QP to
// ERR at any time and have the other follow (Attend). Owned by the SoftObjects.

#ifndef VERBENA_TRANSPORT_SOFT_QUEUE_PAIR_H_
#define VERBENA_TRANSPORT_SOFT_QUEUE_PAIR_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "verbena/transport/device/device.h"
#include "verbena/transport/soft/address.h"
#include "verbena/transport/soft/completions.h"
#include "verbena/transport/soft/copies_under_way.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/peer.h"
#include "verbena/transport/soft/receive_queue.h"
#include "verbena/transport/soft/responder.h"
#include "verbena/transport/soft/send_queue.h"

namespace verbena::internal::soft {

class SoftState;

class QueuePair : public ibv_qp {
 public:
  QueuePair(SoftState& device, ibv_pd* domain, const ibv_qp_init_attr& init, uint32_t number,
            QpIdentity identity, SharedRegion inline_data);

  SoftState& device() { return device_; }
  Completions& send_side() { return *static_cast<Completions*>(send_cq); }
  Completions& receive_side() { return *static_cast<Completions*>(recv_cq); }
  SharedReceiveQueue* shared_receives() { return static_cast<SharedReceiveQueue*>(srq); }
  SendQueue& send_queue() { return send_queue_; }
  Responder& responder() { return responder_; }
  QpIdentity identity() const { return identity_; }
  uint32_t pd_handle() const { return pd->handle; }

  ibv_qp_state current_state() const { return state_.load(std::memory_order_acquire); }
  bool CanReceive() const {
    const ibv_qp_state now = current_state();
    return now == IBV_QPS_RTR || now == IBV_QPS_RTS || now == IBV_QPS_SQD;
  }

  // The attributes that modify_qp set. Written under both locks.
  const ibv_qp_attr& attributes() const { return attributes_; }
  const ibv_qp_init_attr& init() const { return init_; }
  // The device that it is connected to.
  const DeviceAddress& peer_address() const { return peer_address_; }
  // True when it is connected to QP `source` of the device at `address`.
  bool IsConnectedTo(const DeviceAddress& address, uint32_t source) const {
    return attributes_.dest_qp_num == source && peer_address_ == address;
  }

  // What came of looking for that device since the last move to RTR; null before the first. Under
  // both locks.
  const std::shared_ptr<PeerAnswer>& peer_answer() const { return peer_answer_; }
  void set_peer_answer(std::shared_ptr<PeerAnswer> answer) { peer_answer_ = std::move(answer); }

  // Checks a transition as verbs does: 0 or EINVAL.
  int CheckModify(const ibv_qp_attr& attributes, int mask) const;
  // Applies a checked transition, except for one to ERR, which is Fail. Under both locks.
  void Modify(const ibv_qp_attr& attributes, int mask);

  // The transition to ERR that the user asked for. Under both locks.
  void EnterError();
  // Moves to ERR because of something that the half under `side`'s lock saw, and flushes what that
  // lock guards; the other half follows.
  void Fail(Completions& side, CompletionWriter& writer);
  // Called under `side`'s lock after Completions::Attend.
  void Attend(Completions& side, CompletionWriter& writer);
  // An RNR timer ran out. Any thread.
  void OnTimer(uint32_t token);

  void RaiseEvent(ibv_event_type type);

  // Takes the QP out of service: its peer begins no copy into our memory any more, and Quiescence
  // knows those under way. Under the lock of its receive CQ.
  void CloseToPeer();
  // The copies that its peer was in the middle of when a right was last taken from it. Under both
  // locks.
  const std::vector<CopyUnderWay>& withdrawn_copies() const { return withdrawn_copies_; }
  // Adds the copies into our memory that its peer is in the middle of, by `key` or, if that is 0,
  // by any. Under the lock of its receive CQ; the caller has passed a full fence since it withdrew
  // the permission.
  void AddCopiesUnderWay(uint32_t key, std::vector<CopyUnderWay>& copies);

 private:
  // Puts the QP in service: its peer may copy into our memory. Under the lock of its receive CQ.
  void OpenToPeer();
  // The access flags may have changed while it is in service. Likewise.
  void ChangeAccess();
  void FlushHalf(Completions& side, CompletionWriter& writer);
  void ApplyAttributes(const ibv_qp_attr& attributes, int mask);
  void BecomeReset();

  SoftState& device_;
  const QpIdentity identity_;
  ibv_qp_init_attr init_;
  ibv_qp_attr attributes_{};
  DeviceAddress peer_address_;
  std::shared_ptr<PeerAnswer> peer_answer_;
  std::atomic<ibv_qp_state> state_{IBV_QPS_RESET};
  bool last_wqe_raised_ = false;
  std::vector<CopyUnderWay> withdrawn_copies_;
  std::atomic<bool> timer_due_{false};
  std::atomic<uint32_t> timer_token_{0};
  SendQueue send_queue_;
  Responder responder_;
};

// The state machine of modify_qp for reliable connected QPs: which transitions exist, and which
// attributes each demands and allows.

// 0, or EINVAL when verbs forbids modify_qp(attributes, mask) in state `now`.
int CheckTransition(ibv_qp_state now, const ibv_qp_attr& attributes, int mask);

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_QUEUE_PAIR_H_
