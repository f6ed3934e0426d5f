#include "verbena/transport/link/receive_ring.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/wr_id.h"
#include "verbena/transport/log/check.h"

namespace verbena {

absl::StatusOr<std::unique_ptr<ReceiveRing>> ReceiveRing::Create(Device& device, ibv_pd* pd,
                                                                 uint32_t depth, uint32_t spare,
                                                                 uint32_t bytes) {
  absl::StatusOr<Arena> arena = Arena::Create(
      device, pd, size_t{depth + spare} * (bytes + kReceiveStridePadding), IBV_ACCESS_LOCAL_WRITE);
  if (!arena.ok()) return arena.status();
  ibv_srq_init_attr attributes = {};
  attributes.attr.max_wr = depth + spare;
  attributes.attr.max_sge = 1;
  absl::StatusOr<ibv_srq*> srq = device.CreateSrq(pd, attributes);
  if (!srq.ok()) return srq.status();
  const bool newest_first = device.TakeNewestReceivesFirst(*srq);
  return std::unique_ptr<ReceiveRing>(new ReceiveRing(*std::move(arena), SrqHandle(device, *srq),
                                                      depth, spare, bytes, newest_first));
}

ReceiveRing::ReceiveRing(Arena arena, SrqHandle srq, uint32_t depth, uint32_t spare, uint32_t bytes,
                         bool newest_first)
    : arena_(std::move(arena)),
      srq_(std::move(srq)),
      spare_(spare),
      bytes_(bytes),
      stride_(bytes + kReceiveStridePadding),
      newest_first_(newest_first),
      free_(depth + spare),
      is_posted_(depth + spare, false) {
  for (uint32_t index = depth + spare; index-- > 0;) free_.PushBack(index);
  PoisonMemory(arena_.data(), arena_.size());
}

ReceiveRing::~ReceiveRing() {
  // The SRQ goes first: until then the device may write into what is posted.
  srq_.Reset();
  UnpoisonMemory(arena_.data(), arena_.size());
}

absl::Status ReceiveRing::Post() {
  ibv_recv_wr requests[kPostBatch];
  ibv_sge elements[kPostBatch];
  while (posted_ < target_ && !free_.empty()) {
    const uint32_t count =
        std::min({target_ - posted_, static_cast<uint32_t>(free_.size()), uint32_t{kPostBatch}});
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t index = free_.PopBack();
      UnpoisonMemory(data(index), bytes_);
      is_posted_[index] = true;
      elements[i] = {reinterpret_cast<uintptr_t>(data(index)), bytes_, arena_.lkey()};
      requests[i] = {.wr_id = WrId{WrId::Kind::kReceive, 0, 0, index}.Pack(),
                     .next = i + 1 < count ? &requests[i + 1] : nullptr,
                     .sg_list = &elements[i],
                     .num_sge = 1};
    }
    ibv_recv_wr* refused = nullptr;
    const int error = ibv_post_srq_recv(srq_.get(), requests, &refused);
    if (error != 0)
      return ErrnoStatus(error, fmt::format("ibv_post_srq_recv of {} receives", count));
    posted_ += count;
  }
  return absl::OkStatus();
}

void ReceiveRing::UpdateTarget() {
  const uint32_t spare = spare_ - std::min(spare_, missing() + written_off_);
  target_ = needed_ + kRepostBatch + std::min(spare, doubted_ + doubted_later_);
}

void ReceiveRing::Doubt(uint32_t count) {
  if (count == 0 || newest_first_) return;
  ++ends_in_silence_;
  if (in_doubt()) {
    doubted_later_ += count;
    UpdateTarget();
    return;
  }
  stage_ = Stage::kWaiting;
  ++doubt_;
  doubted_ = count;
  is_older_ = is_posted_;
  older_ = posted_;
  last_was_newer_ = false;
  if (older_ == 0) {
    EndDoubt();
  } else {
    UpdateTarget();
  }
}

void ReceiveRing::OnCompletionInDoubt(uint32_t index) {
  ends_in_silence_ = 0;
  last_was_newer_ = !is_older_[index];
  if (last_was_newer_) {
    if (stage_ == Stage::kMissing) return;
    stage_ = Stage::kMissing;
    doubted_ = 0;
    posted_ -= older_;
    UpdateTarget();
    return;
  }
  is_older_[index] = false;
  // A receive that was missing did not count as posted.
  if (stage_ == Stage::kMissing) {
    ++posted_;
    UpdateTarget();
  }
  if (--older_ == 0) EndDoubt();
}

uint32_t ReceiveRing::Reclaim() {
  VERBENA_CHECK(older_are_taken()) << older_ << " receives may be the device's";
  const uint32_t count = older_;
  for (uint32_t index = 0; index < is_older_.size(); ++index) {
    if (!is_older_[index]) continue;
    is_posted_[index] = false;
    Release(index);
  }
  EndDoubt();
  return count;
}

// If a completion comes after all, its buffer is found not to be posted.
uint32_t ReceiveRing::WriteOff() {
  VERBENA_CHECK(older_are_taken()) << older_ << " receives may be the device's";
  const uint32_t count = older_;
  for (uint32_t index = 0; index < is_older_.size(); ++index) {
    if (is_older_[index]) is_posted_[index] = false;
  }
  written_off_ += count;
  EndDoubt();
  return count;
}

void ReceiveRing::EndDoubt() {
  stage_ = Stage::kCertain;
  older_ = 0;
  doubted_ = 0;
  ends_in_silence_ = 0;
  const uint32_t later = std::exchange(doubted_later_, 0);
  UpdateTarget();
  Doubt(later);
}

}  // namespace verbena
