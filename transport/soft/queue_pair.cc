#include "verbena/transport/soft/queue_pair.h"

#include <cerrno>
#include <utility>
#include <vector>

#include "verbena/transport/soft/in_lanes.h"
#include "verbena/transport/soft/state.h"

namespace verbena::internal::soft {
namespace {

struct Transition {
  ibv_qp_state from;
  ibv_qp_state to;
  int required;
  int optional;
};

constexpr int kInitAttributes = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kServiceOptions = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH |
                                IBV_QP_PATH_MIG_STATE | IBV_QP_MIN_RNR_TIMER;

constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, kInitAttributes, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, kInitAttributes},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     kServiceOptions},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, kServiceOptions},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, kServiceOptions},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     kServiceOptions | IBV_QP_AV | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_TIMEOUT |
         IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC},
};

bool AttributesMakeSense(const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_PORT) != 0 && attributes.port_num != 1) return false;
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && attributes.pkey_index != 0) return false;
  if ((mask & IBV_QP_AV) != 0 &&
      // Without a GID, a LID names the device; 0 names none.
      ((attributes.ah_attr.is_global == 0 && attributes.ah_attr.dlid == 0) ||
       attributes.ah_attr.grh.sgid_index != 0 || attributes.ah_attr.port_num > 1)) {
    return false;
  }
  if ((mask & IBV_QP_PATH_MTU) != 0 &&
      (attributes.path_mtu < IBV_MTU_256 || attributes.path_mtu > IBV_MTU_4096)) {
    return false;
  }
  if ((mask & IBV_QP_RNR_RETRY) != 0 && attributes.rnr_retry > 7) return false;
  if ((mask & IBV_QP_RETRY_CNT) != 0 && attributes.retry_cnt > 7) return false;
  if ((mask & IBV_QP_TIMEOUT) != 0 && attributes.timeout > 31) return false;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && attributes.min_rnr_timer > 31) return false;
  constexpr int kMaxReads = 16;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && attributes.max_rd_atomic > kMaxReads) return false;
  return (mask & IBV_QP_MAX_DEST_RD_ATOMIC) == 0 || attributes.max_dest_rd_atomic <= kMaxReads;
}

}  // namespace

QueuePair::QueuePair(SoftState& device, ibv_pd* domain, const ibv_qp_init_attr& init,
                     uint32_t number, QpIdentity identity, SharedRegion inline_data)
    : ibv_qp{},
      device_(device),
      identity_(identity),
      init_(init),
      send_queue_(*this, init.cap, init.sq_sig_all != 0, std::move(inline_data)),
      responder_(*this, init.cap, init.srq != nullptr) {
  context = &device.context();
  qp_context = init.qp_context;
  pd = domain;
  send_cq = init.send_cq;
  recv_cq = init.recv_cq;
  srq = init.srq;
  handle = number;
  qp_num = number;
  state = IBV_QPS_RESET;
  qp_type = init.qp_type;
  attributes_.cap = init.cap;
}

int QueuePair::CheckModify(const ibv_qp_attr& attributes, int mask) const {
  const ibv_qp_state now = current_state();
  // Another path to the same peer, as verbs has it. The lanes lead to this device alone.
  if (now == IBV_QPS_SQD && (mask & IBV_QP_AV) != 0 &&
      device_.AddressOf(attributes.ah_attr) != peer_address_) {
    return EINVAL;
  }
  return CheckTransition(now, attributes, mask);
}

void QueuePair::Modify(const ibv_qp_attr& attributes, int mask) {
  ApplyAttributes(attributes, mask);
  if (CanReceive()) ChangeAccess();
  if ((mask & IBV_QP_STATE) == 0) return;
  const ibv_qp_state before = current_state();
  state_.store(attributes.qp_state, std::memory_order_release);
  state = attributes.qp_state;
  if (attributes.qp_state == IBV_QPS_SQD && before == IBV_QPS_RTS) {
    send_queue_.Drain((mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 &&
                      attributes.en_sqd_async_notify != 0);
  }
  if (attributes.qp_state == IBV_QPS_RTS) send_queue_.EndDrain();
  if (attributes.qp_state == IBV_QPS_RESET) BecomeReset();
  if (attributes.qp_state == IBV_QPS_RTR) OpenToPeer();
}

void QueuePair::ApplyAttributes(const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) attributes_.qp_access_flags = attributes.qp_access_flags;
  if ((mask & IBV_QP_PKEY_INDEX) != 0) attributes_.pkey_index = attributes.pkey_index;
  if ((mask & IBV_QP_PORT) != 0) attributes_.port_num = attributes.port_num;
  if ((mask & IBV_QP_AV) != 0) {
    attributes_.ah_attr = attributes.ah_attr;
    peer_address_ = device_.AddressOf(attributes.ah_attr);
  }
  if ((mask & IBV_QP_PATH_MTU) != 0) attributes_.path_mtu = attributes.path_mtu;
  if ((mask & IBV_QP_TIMEOUT) != 0) attributes_.timeout = attributes.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) attributes_.retry_cnt = attributes.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) attributes_.rnr_retry = attributes.rnr_retry;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) attributes_.min_rnr_timer = attributes.min_rnr_timer;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) attributes_.max_rd_atomic = attributes.max_rd_atomic;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) {
    attributes_.max_dest_rd_atomic = attributes.max_dest_rd_atomic;
  }
  if ((mask & IBV_QP_DEST_QPN) != 0) attributes_.dest_qp_num = attributes.dest_qp_num & 0xffffff;
  if ((mask & IBV_QP_RQ_PSN) != 0) {
    attributes_.rq_psn = attributes.rq_psn & 0xffffff;
    responder_.SetFirstPsn(attributes_.rq_psn);
  }
  if ((mask & IBV_QP_SQ_PSN) != 0) {
    attributes_.sq_psn = attributes.sq_psn & 0xffffff;
    send_queue_.SetFirstPsn(attributes_.sq_psn);
  }
}

void QueuePair::BecomeReset() {
  CloseToPeer();
  if (OutLane* lane = send_queue_.lane(); lane != nullptr) lane->RemoveUser(qp_num);
  send_queue_.Reset();
  responder_.Reset();
  // Its next peer is to find none of them open.
  device_.windows().InvalidateAll(qp_num);
  last_wqe_raised_ = false;
  withdrawn_copies_.clear();
  send_side().ForgetCompletions(qp_num, /*drop=*/true);
  if (send_cq != recv_cq) receive_side().ForgetCompletions(qp_num, /*drop=*/true);
}

void QueuePair::EnterError() {
  CompletionWriter sends(send_side());
  // WRs that the target has executed by now end as executed.
  if (OutLane* lane = send_queue_.lane(); lane != nullptr) lane->Harvest(sends);
  state_.store(IBV_QPS_ERR, std::memory_order_release);
  state = IBV_QPS_ERR;
  FlushHalf(send_side(), sends);
  sends.Finish();
  if (send_cq == recv_cq) return;
  CompletionWriter receives(receive_side());
  FlushHalf(receive_side(), receives);
  receives.Finish();
}

void QueuePair::Fail(Completions& side, CompletionWriter& writer) {
  ibv_qp_state now = current_state();
  do {
    if (now == IBV_QPS_ERR || now == IBV_QPS_RESET) return;
  } while (!state_.compare_exchange_weak(now, IBV_QPS_ERR));
  FlushHalf(side, writer);
  Completions& other = &side == &send_side() ? receive_side() : send_side();
  if (&other != &side) other.Attend(*this);
}

void QueuePair::FlushHalf(Completions& side, CompletionWriter& writer) {
  if (&side == &send_side()) send_queue_.Flush(writer);
  if (&side != &receive_side()) return;
  CloseToPeer();
  responder_.Flush(writer);
  // No message can take a receive of the SRQ for this QP any more.
  if (srq != nullptr && device_.capabilities().last_wqe_event &&
      !std::exchange(last_wqe_raised_, true)) {
    RaiseEvent(IBV_EVENT_QP_LAST_WQE_REACHED);
  }
}

void QueuePair::Attend(Completions& side, CompletionWriter& writer) {
  if (current_state() == IBV_QPS_ERR) {
    FlushHalf(side, writer);
    return;
  }
  if (&side != &send_side()) return;
  if (timer_due_.exchange(false, std::memory_order_acquire)) {
    send_queue_.EndBackoff(timer_token_.load(std::memory_order_relaxed));
  }
  // Whatever the timer was for: somebody may have asked for this turn, too.
  send_queue_.Resume(writer);
}

// The engine calls this for one timer after another.
void QueuePair::OnTimer(uint32_t token) {
  // A connection that was reset leaves its timers behind. They must not hide the one that counts.
  if (!send_queue_.Awaits(token)) return;
  timer_token_.store(token, std::memory_order_relaxed);
  timer_due_.store(true, std::memory_order_release);
  send_side().Attend(*this);
}

void QueuePair::RaiseEvent(ibv_event_type type) {
  device_.async_events().Push({.element = static_cast<ibv_qp*>(this), .type = type});
}

void QueuePair::OpenToPeer() {
  constexpr unsigned kReads = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  const unsigned denied = attributes_.max_dest_rd_atomic == 0 ? kReads : 0;
  device_.quiescence().Enter(identity_);
  QpEntry& entry = device_.tables().QpAt(qp_num);
  entry.pd.store(pd_handle(), std::memory_order_relaxed);
  entry.access.store(attributes_.qp_access_flags & ~denied, std::memory_order_relaxed);
  entry.source.store(attributes_.dest_qp_num, std::memory_order_relaxed);
  entry.source_gid[0].store(peer_address_.gid.global.subnet_prefix, std::memory_order_relaxed);
  entry.source_gid[1].store(peer_address_.gid.global.interface_id, std::memory_order_relaxed);
  entry.source_lid.store(peer_address_.lid, std::memory_order_relaxed);
  entry.qpn.store(qp_num, std::memory_order_release);
}

void QueuePair::ChangeAccess() {
  const std::atomic<uint32_t>& access = device_.tables().QpAt(qp_num).access;
  const uint32_t before = access.load(std::memory_order_relaxed);
  OpenToPeer();
  if ((before & ~access.load(std::memory_order_relaxed)) == 0) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  AllOver(withdrawn_copies_);
  AddCopiesUnderWay(/*key=*/0, withdrawn_copies_);
}

void QueuePair::CloseToPeer() {
  QpEntry& entry = device_.tables().QpAt(qp_num);
  if (entry.qpn.load(std::memory_order_relaxed) != qp_num) return;
  entry.qpn.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::vector<CopyUnderWay> copies;
  AddCopiesUnderWay(/*key=*/0, copies);
  device_.quiescence().Leave(identity_, std::move(copies));
}

void QueuePair::AddCopiesUnderWay(uint32_t key, std::vector<CopyUnderWay>& copies) {
  receive_side().in_lanes().AddCopiesUnderWay(&peer_address_, key, copies);
}

int CheckTransition(ibv_qp_state now, const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_CUR_STATE) != 0 && attributes.cur_qp_state != now) return EINVAL;
  const ibv_qp_state next = (mask & IBV_QP_STATE) != 0 ? attributes.qp_state : now;
  if (next == IBV_QPS_RESET || next == IBV_QPS_ERR) {
    return (mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE)) == 0 && (mask & IBV_QP_STATE) != 0 ? 0
                                                                                          : EINVAL;
  }
  for (const Transition& transition : kTransitions) {
    if (transition.from != now || transition.to != next) continue;
    const int given = mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
    if ((given & transition.required) != transition.required) return EINVAL;
    if ((given & ~(transition.required | transition.optional)) != 0) return EINVAL;
    return AttributesMakeSense(attributes, mask) ? 0 : EINVAL;
  }
  return EINVAL;
}

}  // namespace verbena::internal::soft
