#include "verbena/transport/soft/send_queue.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <mutex>

#include "verbena/transport/base/check.h"
#include "verbena/transport/soft/completions.h"
#include "verbena/transport/soft/direct_copy.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/memory_table.h"
#include "verbena/transport/soft/options.h"
#include "verbena/transport/soft/queue_pair.h"
#include "verbena/transport/soft/ring.h"
#include "verbena/transport/soft/state.h"
#include "verbena/transport/soft/user_memory.h"

namespace verbena::internal::soft {
namespace {

bool IsSend(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV;
}

bool IsAtomic(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

bool IsWrite(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

// By ibv_wr_opcode; kNone are those that are executed without the peer.
constexpr Opcode kRequests[] = {
    Opcode::kWrite,       Opcode::kWrite,    Opcode::kSend, Opcode::kSend, Opcode::kRead,
    Opcode::kCompareSwap, Opcode::kFetchAdd, Opcode::kNone, Opcode::kNone, Opcode::kSendInvalidate};
static_assert(IBV_WR_SEND_WITH_INV + 1 == std::size(kRequests));

ibv_wc_opcode CompletionOf(ibv_wr_opcode opcode) {
  if (IsSend(opcode)) return IBV_WC_SEND;
  if (IsWrite(opcode)) return IBV_WC_RDMA_WRITE;
  if (opcode == IBV_WR_RDMA_READ) return IBV_WC_RDMA_READ;
  if (opcode == IBV_WR_BIND_MW) return IBV_WC_BIND_MW;
  if (opcode == IBV_WR_LOCAL_INV) return IBV_WC_LOCAL_INV;
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? IBV_WC_COMP_SWAP : IBV_WC_FETCH_ADD;
}

// Behind requests that the target has not consumed yet, a WR up to this size goes through the ring
// too, which keeps the order by itself; a larger one waits for its turn to be copied here.
constexpr uint32_t kNotWorthWaiting = 4096;

// How long a queue pair waits after an RNR NAK, by ibv_qp_attr::min_rnr_timer.
Duration RnrDelay(uint32_t timer) {
  static constexpr int kHundredthsOfMs[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                              16,    24,   32,   48,    64,    96,    128,   192,
                                              256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                              4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return std::chrono::microseconds(10) * kHundredthsOfMs[timer & 31];
}

// By ibv_qp_attr::timeout.
Duration TransportTimeout(uint8_t timeout) {
  return std::chrono::nanoseconds(int64_t{4096} << (timeout & 31));
}

ibv_wc_status StatusOf(NakReason reason) {
  switch (reason) {
    case NakReason::kNoReceive:
      return IBV_WC_RNR_RETRY_EXC_ERR;
    case NakReason::kInvalidRequest:
      return IBV_WC_REM_INV_REQ_ERR;
    case NakReason::kAccess:
      return IBV_WC_REM_ACCESS_ERR;
    case NakReason::kOperation:
      return IBV_WC_REM_OP_ERR;
    default:
      return IBV_WC_RETRY_EXC_ERR;
  }
}

// How often a LOCAL_INV is looked at again with each poll before it is left to a timer: a peer that
// runs ends its copy within microseconds, one that is frozen is not worth anybody's attention.
constexpr uint32_t kEagerLooks = 64;
constexpr Duration kPatientLook = std::chrono::milliseconds(1);

}  // namespace

SendQueue::SendQueue(QueuePair& qp, const ibv_qp_cap& cap, bool signal_all,
                     SharedRegion inline_data)
    : qp_(qp),
      max_wr_(cap.max_send_wr),
      max_sge_(cap.max_send_sge),
      max_inline_(cap.max_inline_data),
      signal_all_(signal_all),
      opcodes_(PostableOpcodes(qp.device().capabilities())),
      mask_(SlotsOf(cap) - 1),
      wqes_(std::make_unique<Wqe[]>(size_t{mask_} + 1)),
      sges_(std::make_unique<ibv_sge[]>((size_t{mask_} + 1) * std::max(1u, max_sge_))),
      inline_data_(std::move(inline_data)) {}

uint32_t SendQueue::SlotsOf(const ibv_qp_cap& cap) {
  return std::bit_ceil(std::max(1u, cap.max_send_wr));
}

int SendQueue::Post(ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  Completions& cq = qp_.send_side();
  std::lock_guard<SpinLock> lock(cq.lock());
  const ibv_qp_state state = qp_.current_state();
  int error = state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_ERR ? 0 : EINVAL;
  if (state == IBV_QPS_ERR && !qp_.device().capabilities().flushes_in_error) return 0;
  cq.BeginTurn();
  for (; wr != nullptr && error == 0; wr = wr->next) {
    error = Enqueue(*wr);
    if (error != 0) break;
    LaunchPending();
    // After a failure nothing is sent any more.
    if ((wr->send_flags & IBV_SEND_INLINE) == 0 || launched_ == tail_ || failed_) continue;
    if (!StoreInline(tail_ - 1, nullptr)) {
      --tail_;
      // Its first bytes may have been copied already. The next WR begins at its own first byte.
      if (launched_ == tail_) direct_offset_ = 0;
      error = EFAULT;
      break;
    }
  }
  if (error != 0) *bad_wr = wr;
  if (published_) Announce();
  if ((failed_ || target_lost_ || state == IBV_QPS_ERR) && done_ != tail_) {
    CompletionWriter writer(cq);
    Resume(writer);
    writer.Finish();
  }
  return error;
}

int SendQueue::CheckPost(const ibv_send_wr& wr, uint64_t& length) const {
  const auto opcode = static_cast<uint32_t>(wr.opcode);
  if (opcode >= std::size(kRequests) || (opcodes_ >> opcode & 1) == 0) return EINVAL;
  if (IsWindowOperation(wr.opcode) && !IsSoundWindowWr(wr)) return EINVAL;
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > max_sge_) return EINVAL;
  length = 0;
  for (int i = 0; i < wr.num_sge; ++i) length += wr.sg_list[i].length;
  if (length > kMaxMessageBytes) return EINVAL;
  if ((wr.send_flags & IBV_SEND_INLINE) != 0 &&
      (length > max_inline_ || (!IsSend(wr.opcode) && !IsWrite(wr.opcode)))) {
    return EINVAL;
  }
  if (IsAtomic(wr.opcode) && length != sizeof(uint64_t)) return EINVAL;
  return tail_ - released_ >= max_wr_ ? ENOMEM : 0;
}

int SendQueue::Enqueue(const ibv_send_wr& wr) {
  uint64_t length;
  if (int error = CheckPost(wr, length); error != 0) return error;
  VERBENA_DCHECK(tail_ - released_ <= mask_) << "a send queue of " << mask_ + 1 << " slots";
  const uint32_t index = tail_;
  Wqe& wqe = At(index);
  wqe.wr_id = wr.wr_id;
  wqe.length = static_cast<uint32_t>(length);
  wqe.immediate = wr.imm_data;
  wqe.opcode = wr.opcode;
  wqe.flags = static_cast<uint8_t>(wr.send_flags | (signal_all_ ? IBV_SEND_SIGNALED : 0));
  wqe.num_sge = static_cast<uint8_t>(wr.num_sge);
  wqe.state = State::kPosted;
  wqe.inline_stored = false;
  wqe.placed = false;
  wqe.route = Wire::kUndecided;
  if (wr.num_sge == 1) {
    wqe.first_sge = wr.sg_list[0];
  } else if (wr.num_sge > 1) {
    std::memcpy(SgesOf(wqe, index), wr.sg_list, sizeof(ibv_sge) * wr.num_sge);
  }
  if (IsAtomic(wr.opcode)) {
    wqe.remote_address = wr.wr.atomic.remote_addr;
    wqe.rkey = wr.wr.atomic.rkey;
    wqe.compare_add = wr.wr.atomic.compare_add;
    wqe.swap = wr.wr.atomic.swap;
  } else if (!IsSend(wr.opcode)) {
    if (IsWindowOperation(wr.opcode)) {
      StoreWindowWr(wr, wqe);
    } else {
      wqe.remote_address = wr.wr.rdma.remote_addr;
      wqe.rkey = wr.wr.rdma.rkey;
    }
  }
  ++tail_;
  return 0;
}

void SendQueue::Resume(CompletionWriter& writer) {
  if (qp_.current_state() == IBV_QPS_ERR) {
    Flush(writer);
    return;
  }
  LaunchPending();
  if (published_) Announce();
  if (target_lost_ && done_ != tail_) {
    ReportFailure(done_, IBV_WC_RETRY_EXC_ERR, writer);
  } else if (failed_ && done_ == launched_) {
    ReportFailure(done_, At(done_).failure, writer);
  }
}

void SendQueue::Announce() {
  published_ = false;
  lane_->Announce();
}

uint32_t SendQueue::LaunchEnd() const {
  const ibv_qp_state state = qp_.current_state();
  if (state == IBV_QPS_RTS) return tail_;
  return state == IBV_QPS_SQD ? drain_end_ : launched_;
}

void SendQueue::LaunchPending() {
  const uint32_t end = LaunchEnd();
  if (launched_ == end || lane_ == nullptr || backing_off_ || failed_ || target_lost_) return;
  // Nobody polls for what becomes of these WRs: the target is to wake our engine.
  if (qp_.send_side().unpolled()) lane_->header().wake_level.store(kWakeOnConsumed);
  while (launched_ != end && LaunchOne(launched_)) ++launched_;
}

bool SendQueue::LaunchOne(uint32_t index) {
  Wqe& wqe = At(index);
  if (launch_offset_ == 0) {
    const int read_limit = qp_.attributes().max_rd_atomic;
    if (NeedsAnswer(wqe) && read_limit == 0) return FailLocally(index, IBV_WC_LOC_QP_OP_ERR);
    // Resumed when an answer arrives.
    if ((wqe.flags & IBV_SEND_FENCE) != 0 && outstanding_reads_ != 0) return false;
    if (!LocalMemoryAllowed(wqe, index)) return FailLocally(index, IBV_WC_LOC_PROT_ERR);
    if (!IsSend(wqe.opcode)) {
      if (IsWindowOperation(wqe.opcode)) return LaunchWindowWr(index);
      const Direct direct = TryDirect(index);
      if (direct != Direct::kUseRing) return direct == Direct::kDone;
    }
    if (NeedsAnswer(wqe) && outstanding_reads_ >= read_limit) return false;
    wqe.first_psn = next_psn_;
  } else if (!LocalMemoryAllowed(wqe, index)) {
    return FailLocally(index, IBV_WC_LOC_PROT_ERR);
  }
  if (!lane_->IsTurnOf(*this) || !WriteFragments(wqe, index)) {
    if (!failed_) lane_->AwaitRoom(*this);
    return false;
  }
  wqe.state = State::kLaunched;
  wqe.end = lane_->requests().position();
  if (NeedsAnswer(wqe)) CountReads(1);
  if ((wqe.flags & kReported) != 0) lane_->Watch(*this, wqe.end);
  return true;
}

bool SendQueue::LocalMemoryAllowed(Wqe& wqe, uint32_t index) {
  if ((wqe.flags & IBV_SEND_INLINE) != 0) return true;
  const unsigned access = NeedsAnswer(wqe) ? IBV_ACCESS_LOCAL_WRITE : 0;
  const ibv_sge* sges = SgesOf(wqe, index);
  for (uint32_t i = 0; i < wqe.num_sge; ++i) {
    if (!qp_.device().memory().view().Check(sges[i].lkey, qp_.pd_handle(), sges[i].addr,
                                            sges[i].length, access)) {
      return false;
    }
  }
  return true;
}

bool SendQueue::WriteFragments(Wqe& wqe, uint32_t index) {
  RingWriter& ring = lane_->requests();
  const uint32_t payload_bytes = NeedsAnswer(wqe) || wqe.placed ? 0 : wqe.length;
  const CopyWay way = IsSend(wqe.opcode) ? CopyWay::kSend : CopyWay::kRing;
  CopyCounters& copied = qp_.send_side().copied();
  MessageHeader header{.opcode = kRequests[wqe.opcode],
                       .immediate = wqe.immediate,
                       .destination = qp_.attributes().dest_qp_num,
                       .source = qp_.qp_num};
  uint8_t flags = (wqe.flags & IBV_SEND_SOLICITED) != 0 ? kSolicited : 0;
  if (wqe.opcode == IBV_WR_SEND_WITH_IMM || wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    flags |= kImmediate;
  }
  if (wqe.placed) flags |= kPlaced;
  while (true) {
    const bool first = launch_offset_ == 0;
    const size_t prefix = first ? PrefixBytes(wqe) : 0;
    const uint32_t bytes = static_cast<uint32_t>(
        std::min<size_t>(payload_bytes - launch_offset_, kMaxFragmentBytes - prefix));
    std::byte* payload = ring.Reserve(prefix + bytes);
    if (payload == nullptr) return false;
    if (prefix != 0) WritePrefix(wqe, payload);
    if (bytes >= LentPayloads::kLeastBytes && CanLend(wqe)) {
      if (!Lend(payload + prefix, wqe, index, bytes)) {
        return FailLocally(index, IBV_WC_LOC_PROT_ERR);
      }
    } else if (Gather(payload + prefix, wqe, index, launch_offset_, bytes)) {
      copied.Add(way, bytes);
    } else {
      return FailLocally(index, IBV_WC_LOC_PROT_ERR);
    }
    launch_offset_ += bytes;
    const bool last = launch_offset_ == payload_bytes;
    header.flags = flags | (first ? kFirst : 0);
    if (last) {
      header.flags |= kLast | ((wqe.flags & IBV_SEND_SIGNALED) != 0 ? kWatched : 0);
    }
    header.length = static_cast<uint16_t>(prefix + bytes);
    header.psn = next_psn_++;
    if (first) wqe.start = ring.position();
    ring.Publish(header);
    published_ = true;
    if (last) break;
  }
  launch_offset_ = 0;
  return true;
}

size_t SendQueue::PrefixBytes(const Wqe& wqe) {
  if (IsSend(wqe.opcode)) return 0;
  return sizeof(TargetRange) + (IsAtomic(wqe.opcode) ? sizeof(AtomicOperands) : 0);
}

void SendQueue::WritePrefix(const Wqe& wqe, std::byte* to) {
  const TargetRange range{.address = wqe.remote_address, .length = wqe.length, .rkey = wqe.rkey};
  std::memcpy(to, &range, sizeof(range));
  if (!IsAtomic(wqe.opcode)) return;
  const AtomicOperands operands{.compare_or_add = wqe.compare_add, .swap = wqe.swap};
  std::memcpy(to + sizeof(range), &operands, sizeof(operands));
}

bool SendQueue::Gather(std::byte* to, Wqe& wqe, uint32_t index, uint32_t offset, uint32_t bytes) {
  const ibv_sge* sge = SgesOf(wqe, index);
  for (; bytes != 0; ++sge) {
    if (offset >= sge->length) {
      offset -= sge->length;
      continue;
    }
    const uint32_t part = std::min(bytes, sge->length - offset);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    const auto* const from = reinterpret_cast<const void*>(sge->addr + offset);
    if (!CopyUserMemory(to, from, part)) return false;
    offset = 0;
    to += part;
    bytes -= part;
  }
  return true;
}

bool SendQueue::StoreInline(uint32_t index, const std::byte* from_ring) {
  Wqe& wqe = At(index);
  if (wqe.inline_stored || wqe.length == 0) return true;
  std::byte* to = inline_data_.data() + size_t{index & mask_} * max_inline_;
  if (from_ring != nullptr) {
    std::memcpy(to, from_ring, wqe.length);
  } else if (!Gather(to, wqe, index, 0, wqe.length)) {
    return false;
  }
  qp_.send_side().copied().Add(CopyWay::kInline, wqe.length);
  wqe.inline_stored = true;
  wqe.num_sge = 1;
  wqe.first_sge = {.addr = reinterpret_cast<uint64_t>(to), .length = wqe.length, .lkey = 0};
  return true;
}

bool SendQueue::FailLocally(uint32_t index, ibv_wc_status status) {
  failed_ = true;
  At(index).failure = status;
  // Reported when everything before it is done. If that has been signalled to nobody, watch it
  // here.
  if (done_ != index) lane_->Watch(*this, At(index - 1).end);
  return false;
}

void SendQueue::Complete(uint64_t consumed, CompletionWriter& writer) {
  for (; done_ != launched_; ++done_) {
    const Wqe& wqe = At(done_);
    if (wqe.end > consumed || (NeedsAnswer(wqe) && wqe.state != State::kAnswered)) break;
    // The target consumed it, too, but executed nothing.
    if (wqe.state == State::kTakenBack) break;
    rnr_retries_ = 0;
    not_ready_since_ = {};
    if ((wqe.flags & IBV_SEND_SIGNALED) != 0) AddCompletion(done_, IBV_WC_SUCCESS, writer);
  }
  // Unless it was reported, and all behind it flushed.
  if (failed_ && done_ == launched_ && done_ != tail_) {
    ReportFailure(done_, At(done_).failure, writer);
  }
  if (draining_ && done_ == drain_end_) Drained();
}

void SendQueue::AddCompletion(uint32_t index, ibv_wc_status status, CompletionWriter& writer) {
  const Wqe& wqe = At(index);
  ibv_wc& wc = writer.Add(status, false, &released_, index + 1);
  wc.wr_id = wqe.wr_id;
  wc.opcode = CompletionOf(wqe.opcode);
  wc.byte_len = NeedsAnswer(wqe) ? wqe.length : 0;
  wc.qp_num = qp_.qp_num;
}

void SendQueue::ReportFailure(uint32_t index, ibv_wc_status status, CompletionWriter& writer) {
  VERBENA_CHECK(index - done_ < tail_ - done_)
      << "WR " << index << " of [" << done_ << ", " << tail_ << ")";
  // Only a peer that breaks the protocol leaves anything before it.
  ForgetReads(index);
  for (; done_ != index; ++done_) AddCompletion(done_, IBV_WC_WR_FLUSH_ERR, writer);
  AddCompletion(index, status, writer);
  done_ = index + 1;
  if (launched_ == index) launched_ = done_;
  qp_.Fail(qp_.send_side(), writer);
}

void SendQueue::ForgetReads(uint32_t end) {
  for (uint32_t index = done_; index != end; ++index) {
    const Wqe& wqe = At(index);
    if (!NeedsAnswer(wqe) || wqe.state != State::kLaunched) continue;
    lane_->ForgetRead(qp_.qp_num, wqe.start, wqe.end);
  }
}

uint32_t SendQueue::AwaitedAnswer() {
  // Answers come in the order of the requests: this one is for the oldest that has none yet.
  uint32_t index = done_;
  while (index != launched_ && !(NeedsAnswer(At(index)) && At(index).state == State::kLaunched)) {
    ++index;
  }
  return index;
}

void SendQueue::Answered(const MessageHeader& answer, const std::byte* payload, PlacedBytes placed,
                         CompletionWriter& writer) {
  const uint32_t index = AwaitedAnswer();
  if (index == launched_ || At(index).first_psn != answer.psn) return;
  Wqe& wqe = At(index);
  const bool last = (answer.flags & kLast) != 0;
  const uint32_t left = wqe.length - answer_offset_;
  const bool fits = answer.length <= left && last == (answer.length == left);
  if (!fits || !LocalMemoryAllowed(wqe, index)) {
    if (!last) lane_->ForgetRead(qp_.qp_num, wqe.start, wqe.end);
    ReportFailure(index, fits ? IBV_WC_LOC_PROT_ERR : IBV_WC_BAD_RESP_ERR, writer);
    return;
  }
  // All of it, unless some is placed.
  const uint32_t before = placed.bytes == 0 ? answer.length : placed.from;
  bool stored = Scatter(wqe, index, answer_offset_, payload, before);
  if (placed.bytes != 0) {
    stored &= Scatter(wqe, index, answer_offset_ + placed.end(), payload + placed.end(),
                      answer.length - placed.end());
  }
  if (!stored) {
    if (!last) lane_->ForgetRead(qp_.qp_num, wqe.start, wqe.end);
    ReportFailure(index, IBV_WC_LOC_PROT_ERR, writer);
    return;
  }
  if (!IsAtomic(wqe.opcode)) {
    qp_.send_side().copied().Add(CopyWay::kRing, answer.length - placed.bytes);
  }
  answer_offset_ += answer.length;
  if (!last) return;
  answer_offset_ = 0;
  wqe.state = State::kAnswered;
  CountReads(-1);
  // An answer is proof that the target has consumed the request and everything before it.
  Complete(wqe.end, writer);
  Resume(writer);
}

bool SendQueue::Scatter(Wqe& wqe, uint32_t index, uint32_t offset, const std::byte* from,
                        uint32_t bytes) {
  const ibv_sge* sge = SgesOf(wqe, index);
  for (; bytes != 0; ++sge) {
    if (offset >= sge->length) {
      offset -= sge->length;
      continue;
    }
    const uint32_t part = std::min(bytes, sge->length - offset);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    if (!CopyUserMemory(reinterpret_cast<void*>(sge->addr + offset), from, part)) return false;
    offset = 0;
    from += part;
    bytes -= part;
  }
  return true;
}

void SendQueue::LoseTarget(CompletionWriter& writer) {
  target_lost_ = true;
  Resume(writer);
}

void SendQueue::Flush(CompletionWriter& writer) {
  draining_ = false;
  if (done_ == launched_ && done_ != tail_) EndInvalidation(writer);
  ForgetReads(launched_);
  for (; done_ != tail_; ++done_) AddCompletion(done_, IBV_WC_WR_FLUSH_ERR, writer);
  launched_ = tail_;
  launch_offset_ = direct_offset_ = 0;
  invalidated_copies_.clear();
  CountReads(-outstanding_reads_);
}

void SendQueue::CountReads(int change) {
  outstanding_reads_ += change;
  VERBENA_DCHECK(outstanding_reads_ >= 0) << outstanding_reads_;
  if (lane_ != nullptr) lane_->CountUnanswered(change);
}

bool SendQueue::HasBegun() {
  if (launch_offset_ != 0 || direct_offset_ != 0) return true;
  if (launched_ == tail_) return false;
  const Wqe& wqe = At(launched_);
  return IsWindowOperation(wqe.opcode) && wqe.window_done;
}

// Not all of what has begun need be launched: a WR may be in the ring in part, or wait for its turn
// after a refusal.
void SendQueue::Drain(bool notify) {
  drain_end_ = launched_ + (HasBegun() ? 1 : 0);
  while (drain_end_ != tail_ && At(drain_end_).state == State::kTakenBack) ++drain_end_;
  draining_ = true;
  tell_drained_ = notify;
  if (done_ == drain_end_) return Drained();
  Wqe& last = At(drain_end_ - 1);
  if ((last.flags & kReported) == 0) {
    last.flags |= kLastToDrain;
    if (launched_ == drain_end_) lane_->Watch(*this, last.end);
  }
  lane_->Activate();
  // Nobody polls, perhaps, and the target was not asked to wake us for a WR that is not signalled.
  qp_.send_side().Attend(qp_);
}

void SendQueue::Drained() {
  draining_ = false;
  if (tell_drained_) qp_.RaiseEvent(IBV_EVENT_SQ_DRAINED);
}

void SendQueue::Reset() {
  draining_ = false;
  ForgetReads(launched_);
  released_ = done_ = launched_ = tail_;
  launch_offset_ = direct_offset_ = 0;
  invalidated_copies_.clear();
  invalidation_looks_ = 0;
  published_ = backing_off_ = failed_ = target_lost_ = false;
  CountReads(-outstanding_reads_);
  answer_offset_ = rnr_retries_ = 0;
  not_ready_since_ = {};
  lane_ = nullptr;
}

// SendQueue: one-sided WRs that are executed here, in the target's memory, without its help.

SendQueue::Direct SendQueue::TryDirect(uint32_t index) {
  Wqe& wqe = At(index);
  if (wqe.route == Wire::kRing || wqe.length == 0 || !qp_.device().options().direct_copies)
    return Direct::kUseRing;
  DirectCopy copy(*lane_);
  if (!copy.Possible(AccessOf(wqe, 0, wqe.length))) return Direct::kUseRing;
  uint64_t consumed = lane_->requests().released();
  // Consumed requests that nobody waits for are not harvested, so `consumed` may be old.
  if (index != done_ && At(index - 1).end > consumed) consumed = lane_->AcceptedByNow();
  if (index != done_ && At(index - 1).end > consumed) {
    if (wqe.length <= kNotWorthWaiting) return Direct::kUseRing;
    lane_->AwaitConsumed(*this);
    return Direct::kWait;
  }
  if (qp_.send_side().direct_left() == 0) {
    qp_.send_side().Attend(qp_);
    return Direct::kWait;
  }
  const bool atomic =
      wqe.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wqe.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  if (!(atomic ? AtomicDirectly(copy, wqe, index) : CopyDirectly(copy, wqe, index))) {
    // The target, asked in the ordinary way, says why not.
    direct_offset_ = 0;
    wqe.route = Wire::kRing;
    return Direct::kUseRing;
  }
  if (failed_) return Direct::kWait;
  if (direct_offset_ < wqe.length) {
    // On with it at the next poll, or by the engine.
    qp_.send_side().Attend(qp_);
    return Direct::kWait;
  }
  direct_offset_ = 0;
  if (wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    wqe.route = Wire::kRing;
    wqe.placed = true;
    return Direct::kUseRing;
  }
  wqe.start = wqe.end = consumed;
  wqe.state = State::kAnswered;
  if ((wqe.flags & kReported) != 0) lane_->MarkReady(*this);
  return Direct::kDone;
}

RemoteAccess SendQueue::AccessOf(const Wqe& wqe, uint64_t offset, uint64_t bytes) const {
  uint32_t access = IBV_ACCESS_REMOTE_WRITE;
  if (wqe.opcode == IBV_WR_RDMA_READ) access = IBV_ACCESS_REMOTE_READ;
  if (wqe.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wqe.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    access = IBV_ACCESS_REMOTE_ATOMIC;
  }
  return {.target_qpn = qp_.attributes().dest_qp_num,
          .source_qpn = qp_.qp_num,
          .source = qp_.device().address(),
          .rkey = wqe.rkey,
          .address = wqe.remote_address + offset,
          .bytes = bytes,
          .access = access};
}

bool SendQueue::CopyDirectly(DirectCopy& copy, Wqe& wqe, uint32_t index) {
  const uint32_t start = direct_offset_;
  const uint32_t end = start + std::min(qp_.send_side().direct_left(), wqe.length - start);
  const ibv_sge* sge = SgesOf(wqe, index);
  uint32_t skip = direct_offset_;
  while (direct_offset_ < end) {
    if (skip >= sge->length) {
      skip -= sge->length;
      ++sge;
      continue;
    }
    const uint32_t bytes = static_cast<uint32_t>(
        std::min<uint64_t>({kMaxChunkBytes, sge->length - skip, end - direct_offset_}));
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    void* local = reinterpret_cast<void*>(sge->addr + skip);
    if (!copy.Chunk(AccessOf(wqe, direct_offset_, bytes), local)) return false;
    direct_offset_ += bytes;
    skip += bytes;
  }
  qp_.send_side().TakeDirect(end - start);
  return true;
}

bool SendQueue::AtomicDirectly(DirectCopy& copy, Wqe& wqe, uint32_t index) {
  const RemoteAccess access = AccessOf(wqe, 0, sizeof(uint64_t));
  if (access.address % sizeof(uint64_t) != 0) return false;
  uint64_t old = 0;
  const bool done = wqe.opcode == IBV_WR_ATOMIC_CMP_AND_SWP
                        ? copy.CompareSwap(access, wqe.compare_add, wqe.swap, old)
                        : copy.FetchAdd(access, wqe.compare_add, old);
  if (!done) return false;
  direct_offset_ = wqe.length;
  // The target has done it: it is not to be asked again.
  if (!Scatter(wqe, index, 0, reinterpret_cast<const std::byte*>(&old), sizeof(old))) {
    FailLocally(index, IBV_WC_LOC_PROT_ERR);
  }
  return true;
}

// SendQueue: payloads of WRITEs and READs that a TCP connection carries past the rings.

// Inline data are the caller's again when posting returns, and are read back from the ring after a
// refusal.
bool SendQueue::CanLend(const Wqe& wqe) const {
  const bool write = wqe.opcode == IBV_WR_RDMA_WRITE || wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  return write && (wqe.flags & IBV_SEND_INLINE) == 0 && lane_->wire() != nullptr &&
         lane_->wire()->CanLend();
}

// The fragment from launch_offset_ on. Announce() comes before the lock is released.
bool SendQueue::Lend(std::byte* to, Wqe& wqe, uint32_t index, uint32_t bytes) {
  LentPayloads& lent = lane_->wire()->lent_requests();
  const uint64_t position = lane_->requests().position();
  const auto* const payload = lane_->requests().PayloadAt(position);
  if (lent.full()) lane_->Announce();
  const ibv_sge* sge = SgesOf(wqe, index);
  uint32_t skip = launch_offset_;
  for (; bytes != 0; ++sge) {
    if (skip >= sge->length) {
      skip -= sge->length;
      continue;
    }
    const uint32_t part = std::min(bytes, sge->length - skip);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    const auto* const from = reinterpret_cast<const void*>(sge->addr + skip);
    if (part >= LentPayloads::kLeastBytes && !lent.full()) {
      lent.Add(position, static_cast<uint32_t>(to - payload), from, part);
    } else if (CopyUserMemory(to, from, part)) {
      qp_.send_side().copied().Add(CopyWay::kRing, part);
    } else {
      // Ends the loans of this message, which is not sent.
      lane_->Announce();
      return false;
    }
    skip = 0;
    to += part;
    bytes -= part;
  }
  return true;
}

size_t SendQueue::FindPlace(const MessageHeader& answer, uint32_t offset, uint32_t from,
                            uint32_t bytes, std::span<iovec> parts) {
  const uint32_t index = AwaitedAnswer();
  if (index == launched_) return 0;
  Wqe& wqe = At(index);
  const bool last = (answer.flags & kLast) != 0;
  if (wqe.opcode != IBV_WR_RDMA_READ || wqe.first_psn != answer.psn || offset > wqe.length ||
      answer.length > wqe.length - offset || last != (answer.length == wqe.length - offset) ||
      !LocalMemoryAllowed(wqe, index)) {
    return 0;
  }
  const ibv_sge* sge = SgesOf(wqe, index);
  uint32_t skip = offset + from;
  size_t count = 0;
  for (; bytes != 0 && count != parts.size(); ++sge) {
    if (skip >= sge->length) {
      skip -= sge->length;
      continue;
    }
    const uint32_t part = std::min(bytes, sge->length - skip);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    parts[count++] = {.iov_base = reinterpret_cast<void*>(sge->addr + skip), .iov_len = part};
    skip = 0;
    bytes -= part;
  }
  return count;
}

// SendQueue: how it handles refusals: when a WR is sent again, and when its QP fails.

void SendQueue::Refused(const RefusedFragment& refusal, CompletionWriter& writer) {
  // The target executed everything that it consumed before the refused fragment.
  Complete(refusal.position, writer);
  // A WR that was taken back since, or a QP that was reset, is of no interest.
  uint32_t index = done_;
  const bool launching = launch_offset_ != 0;
  const uint32_t in_ring = launched_ + (launching ? 1 : 0);
  while (index != in_ring && !Contains(index, refusal.position)) ++index;
  if (index == in_ring) return;
  if (qp_.current_state() == IBV_QPS_ERR) {
    // To be flushed. It has not succeeded, and no other answer comes that ForgetReads would have to
    // expect.
    At(index).state = State::kTakenBack;
    return;
  }
  if (refusal.reason == NakReason::kNoReceive || refusal.reason == NakReason::kNotReady) {
    BackOff(index, refusal, writer);
  } else {
    ReportFailure(index, StatusOf(refusal.reason), writer);
  }
}

bool SendQueue::Contains(uint32_t index, uint64_t position) {
  const Wqe& wqe = At(index);
  const uint64_t end = index == launched_ ? lane_->requests().position() : wqe.end;
  return position >= wqe.start && position < end;
}

void SendQueue::BackOff(uint32_t index, const RefusedFragment& refusal, CompletionWriter& writer) {
  const ibv_qp_attr& attributes = qp_.attributes();
  const TimePoint now = qp_.device().Now();
  Duration wait = std::chrono::milliseconds(1);
  if (refusal.reason == NakReason::kNoReceive) {
    constexpr uint8_t kForever = 7;
    if (attributes.rnr_retry != kForever && rnr_retries_ >= attributes.rnr_retry) {
      ReportFailure(index, IBV_WC_RNR_RETRY_EXC_ERR, writer);
      return;
    }
    ++rnr_retries_;
    wait = RnrDelay(refusal.rnr_timer);
  } else {
    if (not_ready_since_ == TimePoint{}) not_ready_since_ = now;
    const Duration timeout = TransportTimeout(attributes.timeout) * (attributes.retry_cnt + 1);
    if (attributes.timeout != 0 && now - not_ready_since_ > timeout) {
      ReportFailure(index, IBV_WC_RETRY_EXC_ERR, writer);
      return;
    }
  }
  TakeBack(index);
  BackOffUntil(now + wait);
}

void SendQueue::TakeBack(uint32_t first) {
  const uint32_t in_ring = launched_ + (launch_offset_ != 0 ? 1 : 0);
  for (uint32_t index = first; index != in_ring; ++index) {
    Wqe& wqe = At(index);
    if ((wqe.flags & IBV_SEND_INLINE) != 0 && !wqe.placed) {
      StoreInline(index, lane_->requests().PayloadAt(wqe.start) + PrefixBytes(wqe));
    }
    if (NeedsAnswer(wqe)) CountReads(-1);
    wqe.state = State::kTakenBack;
  }
  next_psn_ = At(first).first_psn;
  launched_ = first;
  launch_offset_ = 0;
}

void SendQueue::BackOffUntil(TimePoint when) {
  backing_off_ = true;
  const uint32_t token = backoff_token_.load(std::memory_order_relaxed) + 1;
  backoff_token_.store(token, std::memory_order_relaxed);
  qp_.device().engine().StartTimer(when, qp_.qp_num, token);
}

void SendQueue::EndBackoff(uint32_t token) {
  if (Awaits(token)) backing_off_ = false;
}

// SendQueue: BIND_MW and LOCAL_INV, which change what our peer may reach.

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
  if ((wqe.flags & kReported) != 0) ReportInTurn(index);
  return true;
}

bool SendQueue::Bind(uint32_t index) {
  Wqe& wqe = At(index);
  // Executed before an earlier SEND was taken back: the binding stands.
  if (wqe.window_done) return true;
  if (!qp_.device().windows().Bind({.index = wqe.window,
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
      lane_->AwaitConsumed(*this);
      return false;
    }
    if (!qp_.device().windows().Invalidate(wqe.rkey, qp_.qp_num)) {
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
  Completions& receives = qp_.receive_side();
  const bool same = &receives == &qp_.send_side();
  // The lock of another CQ is only tried, since it may come before ours. Having had it proves that
  // no access that we execute for the peer is under way.
  if (!same && !receives.lock().try_lock()) return false;
  qp_.AddCopiesUnderWay(rkey, invalidated_copies_);
  if (!same) receives.lock().unlock();
  return invalidated_copies_.empty();
}

void SendQueue::LookAgain() {
  if (++invalidation_looks_ <= kEagerLooks) {
    qp_.send_side().Attend(qp_);
    return;
  }
  BackOffUntil(qp_.device().Now() + kPatientLook);
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
    lane_->MarkReady(*this);
    return;
  }
  for (uint32_t i = index; i != done_; --i) {
    const Wqe& earlier = At(i - 1);
    if ((earlier.flags & kReported) != 0) return;
    if (!IsWindowOperation(earlier.opcode)) break;
  }
  lane_->Watch(*this, end);
}

}  // namespace verbena::internal::soft
