#include "verbena/transport/link/receive_ring.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/wr_id.h"

namespace verbena::internal {

absl::StatusOr<std::unique_ptr<ReceiveRing>> ReceiveRing::Create(Device& device, ibv_pd* pd,
                                                                 uint32_t depth, uint32_t spare,
                                                                 uint32_t bytes) {
  VERBENA_ASSIGN_OR_RETURN(
      Arena arena,
      Arena::Create(device, pd, size_t{depth + spare} * (bytes + kReceiveStridePadding),
                    IBV_ACCESS_LOCAL_WRITE));
  ibv_srq_init_attr attributes = {};
  attributes.attr.max_wr = depth + spare;
  attributes.attr.max_sge = 1;
  VERBENA_ASSIGN_OR_RETURN(ibv_srq * srq, device.CreateSrq(pd, attributes));
  const bool newest_first = device.TakeNewestReceivesFirst(srq);
  return std::unique_ptr<ReceiveRing>(
      new ReceiveRing(std::move(arena), SrqHandle(device, srq), depth, spare, bytes, newest_first));
}

std::unique_ptr<ReceiveRing> ReceiveRing::Absent() {
  return std::unique_ptr<ReceiveRing>(
      new ReceiveRing(Arena(), SrqHandle(), /*depth=*/0, /*spare=*/0, /*bytes=*/0, false));
}

ReceiveRing::ReceiveRing(Arena arena, SrqHandle srq, uint32_t depth, uint32_t spare, uint32_t bytes,
                         bool newest_first)
    : arena_(std::move(arena)),
      srq_(std::move(srq)),
      spare_(spare),
      bytes_(bytes),
      stride_(bytes + kReceiveStridePadding),
      newest_first_(newest_first),
      posted_{.has = std::vector<bool>(depth + spare, false)},
      free_(depth + spare) {
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
  while (posted_.count < target_ && !free_.empty()) {
    const uint32_t count = std::min(
        {target_ - posted_.count, static_cast<uint32_t>(free_.size()), uint32_t{kPostBatch}});
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t index = free_.PopBack();
      UnpoisonMemory(data(index), bytes_);
      posted_.has[index] = true;
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
    posted_.count += count;
  }
  return absl::OkStatus();
}

void ReceiveRing::UpdateTarget() {
  const uint32_t spare = spare_ - std::min(spare_, doubt_.missing() + doubt_.written_off());
  target_ = needed_ + kRepostBatch + std::min(spare, doubt_.suspected()) + doubt_.missing();
}

void ReceiveRing::Doubt(uint32_t count) {
  if (newest_first_) return;
  doubt_.Raise(count);
  UpdateTarget();
}

void ReceiveRing::OnCompletionInDoubt(uint32_t index) {
  doubt_.OnCompletion(index);
  UpdateTarget();
}

uint32_t ReceiveRing::Reclaim() {
  const uint32_t count = doubt_.missing();
  for (uint32_t index = 0; index < posted_.has.size(); ++index) {
    if (!doubt_.IsMissing(index)) continue;
    posted_.has[index] = false;
    Release(index);
  }
  posted_.count -= count;
  doubt_.Reclaim();
  UpdateTarget();
  return count;
}

// If a completion comes after all, its buffer is found not to be posted.
uint32_t ReceiveRing::WriteOff() {
  const uint32_t count = doubt_.missing();
  for (uint32_t index = 0; index < posted_.has.size(); ++index) {
    if (doubt_.IsMissing(index)) posted_.has[index] = false;
  }
  posted_.count -= count;
  doubt_.WriteOff();
  UpdateTarget();
  return count;
}

}  // namespace verbena::internal
