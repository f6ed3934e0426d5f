#include "verbena/transport/link/link_receives.h"

#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/poison.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {

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
