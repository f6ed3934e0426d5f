// SendQueue: how it handles refusals: when a WR is sent again, and when its QP fails.

#include <chrono>

#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/queue_pair.h"
#include "verbena/transport/soft/rnic.h"
#include "verbena/transport/soft/send_queue.h"

namespace verbena::internal::soft {
namespace {

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

}  // namespace

void SendQueue::Refused(const RefusedFragment& refusal, CompletionWriter& writer) {
  // The target executed everything that it consumed before the refused fragment.
  Complete(refusal.position, writer);
  // A WR that was taken back since, or a QP that was reset, is of no interest.
  uint32_t index = done_;
  const bool launching = launch_offset_ != 0;
  const uint32_t in_ring = launched_ + (launching ? 1 : 0);
  while (index != in_ring && !Contains(index, refusal.position)) ++index;
  if (index == in_ring || qp_.current_state() == IBV_QPS_ERR) return;
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
  const TimePoint now = qp_.rnic().Now();
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
  backing_off_ = true;
  qp_.rnic().StartTimer(now + wait, qp_.qp_num, ++backoff_token_);
}

void SendQueue::TakeBack(uint32_t first) {
  const uint32_t in_ring = launched_ + (launch_offset_ != 0 ? 1 : 0);
  for (uint32_t index = first; index != in_ring; ++index) {
    Wqe& wqe = At(index);
    if ((wqe.flags & IBV_SEND_INLINE) != 0 && !wqe.placed) {
      StoreInline(index, lane_->requests().PayloadAt(wqe.start) + PrefixBytes(wqe));
    }
    if (NeedsAnswer(wqe)) CountReads(-1);
    wqe.state = State::kPosted;
  }
  next_psn_ = At(first).first_psn;
  launched_ = first;
  launch_offset_ = 0;
}

void SendQueue::EndBackoff(uint32_t token, CompletionWriter& writer) {
  if (!backing_off_ || token != backoff_token_) return;
  backing_off_ = false;
  Resume(writer);
}

}  // namespace verbena::internal::soft
