// SendQueue: BIND_MW and LOCAL_INV, which change what our peer may reach.

#include <chrono>
#include <mutex>

#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/memory_windows.h"
#include "verbena/transport/soft/queue_pair.h"
#include "verbena/transport/soft/rnic.h"
#include "verbena/transport/soft/send_queue.h"

namespace verbena::internal::soft {
namespace {

// How often a LOCAL_INV is looked at again with each poll before it is left to a timer: a peer that
// runs ends its copy within microseconds, one that is frozen is not worth anybody's attention.
constexpr uint32_t kEagerLooks = 64;
constexpr Duration kPatientLook = std::chrono::milliseconds(1);

}  // namespace

bool SendQueue::IsSoundWindowWr(const ibv_send_wr& wr) const {
  if (wr.num_sge != 0) return false;
  if (wr.opcode == IBV_WR_LOCAL_INV) return true;
  // A binding has none, and rxe's provider refuses one.
  if (wr.imm_data != 0) return false;
  const ibv_mw* window = wr.bind_mw.mw;
  const ibv_mr* region = wr.bind_mw.bind_info.mr;
  return window != nullptr && window->type == IBV_MW_TYPE_2 && window->context == qp_.context &&
         region != nullptr && region->context == qp_.context;
}

// The objects may be gone when the WR is executed: what it needs of them is noted now, and checked
// then.
void SendQueue::StoreWindowWr(const ibv_send_wr& wr, Wqe& wqe) {
  wqe.window_done = false;
  if (wr.opcode == IBV_WR_LOCAL_INV) {
    wqe.rkey = wr.invalidate_rkey;
    return;
  }
  const ibv_mw_bind_info& bind = wr.bind_mw.bind_info;
  wqe.rkey = wr.bind_mw.rkey;
  wqe.window = wr.bind_mw.mw->handle;
  wqe.region = bind.mr->lkey;
  wqe.remote_address = bind.addr;
  wqe.compare_add = bind.length;
  wqe.swap = bind.mw_access_flags;
}

bool SendQueue::LaunchWindowWr(uint32_t index) {
  Wqe& wqe = At(index);
  if (!(wqe.opcode == IBV_WR_BIND_MW ? Bind(index) : InvalidateLocally(index))) return false;
  // Over as soon as what precedes it is.
  wqe.start = wqe.end = index != done_ ? At(index - 1).end : lane_->requests().released();
  wqe.state = State::kAnswered;
  if ((wqe.flags & IBV_SEND_SIGNALED) != 0) ReportInTurn(index);
  return true;
}

bool SendQueue::Bind(uint32_t index) {
  Wqe& wqe = At(index);
  // Executed before an earlier SEND was taken back: the binding stands.
  if (wqe.window_done) return true;
  if (!qp_.rnic().windows().Bind({.index = wqe.window,
                                  .key = wqe.rkey,
                                  .pd = qp_.pd_handle(),
                                  .qpn = qp_.qp_num,
                                  .region = wqe.region,
                                  .address = wqe.remote_address,
                                  .bytes = wqe.compare_add,
                                  .access = static_cast<uint32_t>(wqe.swap)})) {
    return FailLocally(index, IBV_WC_MW_BIND_ERR);
  }
  wqe.window_done = true;
  return true;
}

bool SendQueue::InvalidateLocally(uint32_t index) {
  Wqe& wqe = At(index);
  if (!wqe.window_done) {
    // Resumed when an answer arrives.
    if (outstanding_reads_ != 0) return false;
    if (index != done_ && At(index - 1).end > lane_->requests().released()) {
      lane_->AwaitConsumed(qp_);
      return false;
    }
    if (!qp_.rnic().windows().Invalidate(wqe.rkey, qp_.qp_num)) {
      return FailLocally(index, IBV_WC_MW_BIND_ERR);
    }
    wqe.window_done = true;
    invalidation_looks_ = 0;
  }
  // From here on no access begins. This queue waits for accesses under way by looking again, so
  // that it keeps nobody else waiting.
  if (!CopiesAreOver(wqe.rkey)) {
    LookAgain();
    return false;
  }
  return true;
}

bool SendQueue::CopiesAreOver(uint32_t rkey) {
  if (!invalidated_copies_.empty()) return AllOver(invalidated_copies_);
  CompletionQueue& receives = qp_.receive_side();
  const bool same = &receives == &qp_.send_side();
  // The lock of another CQ is only tried, since it may come before ours. Having had it proves that
  // no access that we execute for the peer is under way.
  if (!same && !receives.lock().try_lock()) return false;
  AddCopiesUnderWay(receives, &qp_, rkey, invalidated_copies_);
  if (!same) receives.lock().unlock();
  return invalidated_copies_.empty();
}

void SendQueue::LookAgain() {
  if (++invalidation_looks_ <= kEagerLooks) {
    qp_.send_side().Attend(qp_);
    return;
  }
  backing_off_ = true;
  qp_.rnic().StartTimer(qp_.rnic().Now() + kPatientLook, qp_.qp_num, ++backoff_token_);
}

// The peer whose copy was waited for may itself have failed the QP: its copy ended, and its next
// one was refused. Then the LOCAL_INV has succeeded.
void SendQueue::EndInvalidation(CompletionWriter& writer) {
  Wqe& wqe = At(launched_);
  if (wqe.opcode != IBV_WR_LOCAL_INV || !wqe.window_done || !CopiesAreOver(wqe.rkey)) return;
  if ((wqe.flags & IBV_SEND_SIGNALED) != 0) AddCompletion(launched_, IBV_WC_SUCCESS, writer);
  done_ = ++launched_;
}

// A message that is signalled is looked after, and so are the WRs behind it that are over with it.
void SendQueue::ReportInTurn(uint32_t index) {
  const uint64_t end = At(index).end;
  if (end <= lane_->requests().released()) {
    lane_->MarkReady(qp_);
    return;
  }
  for (uint32_t i = index; i != done_; --i) {
    const Wqe& earlier = At(i - 1);
    if ((earlier.flags & IBV_SEND_SIGNALED) != 0) return;
    if (!IsWindowOperation(earlier.opcode)) break;
  }
  lane_->Watch(qp_, end);
}

}  // namespace verbena::internal::soft
