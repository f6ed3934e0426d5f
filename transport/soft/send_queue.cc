#include "verbena/transport/soft/send_queue.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>

#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/lent_payloads.h"
#include "verbena/transport/soft/queue_pair.h"
#include "verbena/transport/soft/rnic.h"
#include "verbena/transport/soft/soft_profile.h"

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

}  // namespace

SendQueue::SendQueue(QueuePair& qp, const ibv_qp_cap& cap, bool signal_all,
                     SharedRegion inline_data)
    : qp_(qp),
      max_wr_(cap.max_send_wr),
      max_sge_(cap.max_send_sge),
      max_inline_(cap.max_inline_data),
      signal_all_(signal_all),
      opcodes_(PostableOpcodes(qp.rnic().capabilities())),
      mask_(SlotsOf(cap) - 1),
      wqes_(std::make_unique<Wqe[]>(size_t{mask_} + 1)),
      sges_(std::make_unique<ibv_sge[]>((size_t{mask_} + 1) * std::max(1u, max_sge_))),
      inline_data_(std::move(inline_data)) {}

uint32_t SendQueue::SlotsOf(const ibv_qp_cap& cap) {
  return std::bit_ceil(std::max(1u, cap.max_send_wr));
}

int SendQueue::Post(ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  CompletionQueue& cq = qp_.send_side();
  std::lock_guard<SpinLock> lock(cq.lock());
  const ibv_qp_state state = qp_.current_state();
  int error = state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_ERR ? 0 : EINVAL;
  direct_left_ = kDirectBytesPerTurn;
  for (; wr != nullptr && error == 0; wr = wr->next) {
    error = Enqueue(*wr);
    if (error != 0) break;
    LaunchPending();
    if ((wr->send_flags & IBV_SEND_INLINE) != 0 && launched_ != tail_) {
      StoreInline(tail_ - 1, nullptr);
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
  direct_left_ = kDirectBytesPerTurn;
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

void SendQueue::LaunchPending() {
  if (launched_ == tail_ || lane_ == nullptr || backing_off_ || failed_ || target_lost_ ||
      qp_.current_state() != IBV_QPS_RTS) {
    return;
  }
  // Nobody polls for what becomes of these WRs: the target is to wake our engine.
  if (qp_.send_side().unpolled()) lane_->header().wake_level.store(kWakeOnConsumed);
  while (launched_ != tail_ && LaunchOne(launched_)) ++launched_;
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
  if (!lane_->IsTurnOf(qp_) || !WriteFragments(wqe, index)) {
    lane_->AwaitRoom(qp_);
    return false;
  }
  wqe.state = State::kLaunched;
  wqe.end = lane_->requests().position();
  if (NeedsAnswer(wqe)) CountReads(1);
  if ((wqe.flags & IBV_SEND_SIGNALED) != 0) lane_->Watch(qp_, wqe.end);
  return true;
}

bool SendQueue::LocalMemoryAllowed(Wqe& wqe, uint32_t index) {
  if ((wqe.flags & IBV_SEND_INLINE) != 0) return true;
  const unsigned access = NeedsAnswer(wqe) ? IBV_ACCESS_LOCAL_WRITE : 0;
  const ibv_sge* sges = SgesOf(wqe, index);
  for (uint32_t i = 0; i < wqe.num_sge; ++i) {
    if (!qp_.rnic().memory().view().Check(sges[i].lkey, qp_.pd_handle(), sges[i].addr,
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
      Lend(payload + prefix, wqe, index, bytes);
    } else {
      Gather(payload + prefix, wqe, index, launch_offset_, bytes);
      copied.Add(way, bytes);
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

void SendQueue::Gather(std::byte* to, Wqe& wqe, uint32_t index, uint32_t offset, uint32_t bytes) {
  const ibv_sge* sge = SgesOf(wqe, index);
  for (; bytes != 0; ++sge) {
    if (offset >= sge->length) {
      offset -= sge->length;
      continue;
    }
    const uint32_t part = std::min(bytes, sge->length - offset);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    std::memcpy(to, reinterpret_cast<const void*>(sge->addr + offset), part);
    offset = 0;
    to += part;
    bytes -= part;
  }
}

void SendQueue::StoreInline(uint32_t index, const std::byte* from_ring) {
  Wqe& wqe = At(index);
  if (wqe.inline_stored || wqe.length == 0) return;
  std::byte* to = inline_data_.data() + size_t{index & mask_} * max_inline_;
  if (from_ring != nullptr) {
    std::memcpy(to, from_ring, wqe.length);
  } else {
    Gather(to, wqe, index, 0, wqe.length);
  }
  qp_.send_side().copied().Add(CopyWay::kInline, wqe.length);
  wqe.inline_stored = true;
  wqe.num_sge = 1;
  wqe.first_sge = {.addr = reinterpret_cast<uint64_t>(to), .length = wqe.length, .lkey = 0};
}

bool SendQueue::FailLocally(uint32_t index, ibv_wc_status status) {
  failed_ = true;
  At(index).failure = status;
  // Reported when everything before it is done. If that has been signalled to nobody, watch it
  // here.
  if (done_ != index) lane_->Watch(qp_, At(index - 1).end);
  return false;
}

void SendQueue::Complete(uint64_t consumed, CompletionWriter& writer) {
  for (; done_ != launched_; ++done_) {
    const Wqe& wqe = At(done_);
    if (wqe.end > consumed || (NeedsAnswer(wqe) && wqe.state != State::kAnswered)) break;
    rnr_retries_ = 0;
    not_ready_since_ = {};
    if ((wqe.flags & IBV_SEND_SIGNALED) != 0) AddCompletion(done_, IBV_WC_SUCCESS, writer);
  }
  // Unless it was reported, and all behind it flushed.
  if (failed_ && done_ == launched_ && done_ != tail_) {
    ReportFailure(done_, At(done_).failure, writer);
  }
}

void SendQueue::AddCompletion(uint32_t index, ibv_wc_status status, CompletionWriter& writer) {
  const Wqe& wqe = At(index);
  ibv_wc& wc = writer.Add(status, false, &qp_, index + 1);
  wc.wr_id = wqe.wr_id;
  wc.opcode = CompletionOf(wqe.opcode);
  wc.byte_len = NeedsAnswer(wqe) ? wqe.length : 0;
  wc.qp_num = qp_.qp_num;
}

void SendQueue::ReportFailure(uint32_t index, ibv_wc_status status, CompletionWriter& writer) {
  // Only a peer that breaks the protocol leaves anything before it.
  for (; done_ != index; ++done_) AddCompletion(done_, IBV_WC_WR_FLUSH_ERR, writer);
  AddCompletion(index, status, writer);
  done_ = index + 1;
  if (launched_ == index) launched_ = done_;
  qp_.Fail(qp_.send_side(), writer);
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
  if (answer.length > left || last != (answer.length == left)) {
    ReportFailure(index, IBV_WC_BAD_RESP_ERR, writer);
    return;
  }
  if (!LocalMemoryAllowed(wqe, index)) {
    ReportFailure(index, IBV_WC_LOC_PROT_ERR, writer);
    return;
  }
  // All of it, unless some is placed.
  const uint32_t before = placed.bytes == 0 ? answer.length : placed.from;
  Scatter(wqe, index, answer_offset_, payload, before);
  if (placed.bytes != 0) {
    Scatter(wqe, index, answer_offset_ + placed.end(), payload + placed.end(),
            answer.length - placed.end());
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

void SendQueue::Scatter(Wqe& wqe, uint32_t index, uint32_t offset, const std::byte* from,
                        uint32_t bytes) {
  const ibv_sge* sge = SgesOf(wqe, index);
  for (; bytes != 0; ++sge) {
    if (offset >= sge->length) {
      offset -= sge->length;
      continue;
    }
    const uint32_t part = std::min(bytes, sge->length - offset);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
    std::memcpy(reinterpret_cast<void*>(sge->addr + offset), from, part);
    offset = 0;
    from += part;
    bytes -= part;
  }
}

void SendQueue::LoseTarget(CompletionWriter& writer) {
  target_lost_ = true;
  Resume(writer);
}

void SendQueue::Flush(CompletionWriter& writer) {
  if (done_ == launched_ && done_ != tail_) EndInvalidation(writer);
  for (; done_ != tail_; ++done_) AddCompletion(done_, IBV_WC_WR_FLUSH_ERR, writer);
  launched_ = tail_;
  launch_offset_ = direct_offset_ = 0;
  invalidated_copies_.clear();
  CountReads(-outstanding_reads_);
}

void SendQueue::CountReads(int change) {
  outstanding_reads_ += change;
  if (lane_ != nullptr) lane_->CountUnanswered(change);
}

void SendQueue::Reset() {
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

}  // namespace verbena::internal::soft
