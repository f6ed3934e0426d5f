#include "verbena/transport/link/receive_ring.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/wr_id.h"

namespace verbena {

absl::StatusOr<std::unique_ptr<ReceiveRing>> ReceiveRing::Create(Device& device, ibv_pd* pd,
                                                                 uint32_t depth, uint32_t bytes) {
  absl::StatusOr<Arena> arena = Arena::Create(
      device, pd, size_t{depth} * (bytes + kReceiveStridePadding), IBV_ACCESS_LOCAL_WRITE);
  if (!arena.ok()) return arena.status();
  ibv_srq_init_attr attributes = {};
  attributes.attr.max_wr = depth;
  attributes.attr.max_sge = 1;
  absl::StatusOr<ibv_srq*> srq = device.CreateSrq(pd, attributes);
  if (!srq.ok()) return srq.status();
  return std::unique_ptr<ReceiveRing>(
      new ReceiveRing(*std::move(arena), SrqHandle(device, *srq), depth, bytes));
}

ReceiveRing::ReceiveRing(Arena arena, SrqHandle srq, uint32_t depth, uint32_t bytes)
    : arena_(std::move(arena)),
      srq_(std::move(srq)),
      depth_(depth),
      bytes_(bytes),
      stride_(bytes + kReceiveStridePadding),
      free_(depth),
      is_posted_(depth, false) {
  for (uint32_t index = depth; index-- > 0;) free_.PushBack(index);
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

}  // namespace verbena
