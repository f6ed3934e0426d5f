#include "verbena/transport/link/receives.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {

void ReceiveDoubt::Raise(uint32_t count) {
  if (count == 0) return;
  ++ends_in_silence_;
  if (open()) {
    suspected_later_ += count;
    return;
  }
  stage_ = Stage::kWaiting;
  ++number_;
  suspected_ = count;
  older_ = posted_;
  last_was_newer_ = false;
  if (older_.count == 0) End();
}

void ReceiveDoubt::OnCompletion(uint32_t index) {
  ends_in_silence_ = 0;
  last_was_newer_ = !older_.has[index];
  if (last_was_newer_) {
    stage_ = Stage::kMissing;
    suspected_ = 0;
    return;
  }
  older_.has[index] = false;
  if (--older_.count == 0) End();
}

void ReceiveDoubt::Reclaim() {
  VERBENA_CHECK(older_are_taken()) << older_.count << " receives may be the device's";
  End();
}

void ReceiveDoubt::WriteOff() {
  VERBENA_CHECK(older_are_taken()) << older_.count << " receives may be the device's";
  written_off_ += older_.count;
  End();
}

void ReceiveDoubt::End() {
  stage_ = Stage::kNone;
  older_.count = 0;
  suspected_ = 0;
  ends_in_silence_ = 0;
  Raise(std::exchange(suspected_later_, 0));
}

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

absl::StatusOr<std::unique_ptr<LinkReceives>> LinkReceives::Create(Device& device, ibv_pd* pd,
                                                                   uint32_t links, uint32_t depth,
                                                                   uint32_t bytes) {
  VERBENA_CHECK(links > 0 && depth >= kMinReceivesPerLink && links <= WrId::kSlotMask / depth)
      << links << " links with " << depth << " receives each";
  VERBENA_ASSIGN_OR_RETURN(
      Arena arena,
      Arena::Create(device, pd, size_t{links} * depth * (bytes + kReceiveStridePadding),
                    IBV_ACCESS_LOCAL_WRITE));
  return std::unique_ptr<LinkReceives>(new LinkReceives(std::move(arena), links, depth, bytes));
}

LinkReceives::LinkReceives(Arena arena, uint32_t links, uint32_t depth, uint32_t bytes)
    : arena_(std::move(arena)),
      depth_(depth),
      batch_(RepostBatchOf(depth)),
      bytes_(bytes),
      stride_(bytes + kReceiveStridePadding),
      queues_(links),
      free_(size_t{links} * depth),
      is_posted_(size_t{links} * depth, false) {
  PoisonMemory(arena_.data(), arena_.size());
}

LinkReceives::~LinkReceives() { UnpoisonMemory(arena_.data(), arena_.size()); }

absl::Status LinkReceives::Begin(const LinkKey& key, ibv_qp* qp) {
  Queue& queue = queues_[key.slot];
  VERBENA_CHECK(queue.qp == nullptr) << "slot " << key.slot << " has a link";
  queue = {.qp = qp, .generation = key.generation, .posted = 0, .free = depth_};
  for (uint32_t i = 0; i < depth_; ++i)
    free_[size_t{key.slot} * depth_ + i] = key.slot * depth_ + i;
  return Post(key.slot);
}

bool LinkReceives::OnCompletion(const WrId& id) {
  if (id.slot >= is_posted_.size() || !is_posted_[id.slot]) return false;
  Queue& queue = queues_[slot_of(id.slot)];
  if (queue.generation != id.generation) return false;
  is_posted_[id.slot] = false;
  --queue.posted;
  --posted_;
  return true;
}

void LinkReceives::Release(uint32_t buffer) {
  PoisonMemory(data(buffer), bytes_);
  const uint32_t slot = slot_of(buffer);
  Queue& queue = queues_[slot];
  // The link may have ended while its last bytes were read.
  if (queue.qp == nullptr) return;
  free_[size_t{slot} * depth_ + queue.free++] = buffer;
}

absl::Status LinkReceives::Repost(uint32_t slot) {
  const Queue& queue = queues_[slot];
  if (queue.free < batch_) return absl::OkStatus();
  return Post(slot);
}

absl::Status LinkReceives::Post(uint32_t slot) {
  Queue& queue = queues_[slot];
  ibv_recv_wr requests[kPostBatch];
  ibv_sge elements[kPostBatch];
  while (queue.free > 0) {
    const uint32_t count = std::min(queue.free, kPostBatch);
    const uint32_t* const buffers = &free_[size_t{slot} * depth_ + queue.free - count];
    for (uint32_t i = 0; i < count; ++i) {
      UnpoisonMemory(data(buffers[i]), bytes_);
      is_posted_[buffers[i]] = true;
      elements[i] = {reinterpret_cast<uintptr_t>(data(buffers[i])), bytes_, arena_.lkey()};
      requests[i] = {
          .wr_id = WrId{WrId::Kind::kLinkReceive, 0, queue.generation, buffers[i]}.Pack(),
          .next = i + 1 < count ? &requests[i + 1] : nullptr,
          .sg_list = &elements[i],
          .num_sge = 1};
    }
    queue.free -= count;
    queue.posted += count;
    posted_ += count;
    ibv_recv_wr* refused = nullptr;
    const int error = ibv_post_recv(queue.qp, requests, &refused);
    if (error != 0) return ErrnoStatus(error, fmt::format("ibv_post_recv of {} receives", count));
  }
  return absl::OkStatus();
}

uint32_t LinkReceives::End(uint32_t slot) {
  Queue& queue = queues_[slot];
  const uint32_t untold = queue.posted;
  for (uint32_t i = 0; i < depth_ && untold > 0; ++i) {
    const uint32_t buffer = slot * depth_ + i;
    if (!is_posted_[buffer]) continue;
    is_posted_[buffer] = false;
    PoisonMemory(data(buffer), bytes_);
  }
  posted_ -= untold;
  queue = {};
  return untold;
}

}  // namespace verbena::internal
