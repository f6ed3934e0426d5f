#include "verbena/transport/link/send_queue.h"

#include <utility>

#include "verbena/transport/base/status.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {
namespace {

constexpr uint32_t kControlSendBytes = sizeof(SendHeader) + ControlFrames::kKinds * FrameBytes(0);

}  // namespace

absl::StatusOr<std::unique_ptr<SendBuffers>> SendBuffers::Create(Device& device, ibv_pd* pd,
                                                                 uint32_t count, uint32_t bytes,
                                                                 uint32_t max_links) {
  const size_t in_all = size_t{count} + kSpares;
  VERBENA_ASSIGN_OR_RETURN(
      Arena arena,
      Arena::Create(device, pd, in_all * (bytes + kReceiveStridePadding), /*access=*/0));
  return std::unique_ptr<SendBuffers>(new SendBuffers(std::move(arena), count, bytes, max_links));
}

SendBuffers::SendBuffers(Arena arena, uint32_t count, uint32_t bytes, uint32_t max_links)
    : arena_(std::move(arena)),
      count_(count),
      bytes_(bytes),
      stride_(bytes + kReceiveStridePadding),
      max_links_(max_links),
      free_(count),
      spare_(kSpares) {
  for (uint32_t index = count; index-- > 0;) free_.PushBack(index);
  for (uint32_t index = count; index < count + kSpares; ++index) spare_.PushBack(index);
  PoisonMemory(arena_.data(), arena_.size());
}

SendBuffers::~SendBuffers() { UnpoisonMemory(arena_.data(), arena_.size()); }

void WrChain::SignalLongOnes() {
  for (ibv_send_wr* request = first_; request != nullptr; request = request->next) {
    // Other requests read no memory that the caller gets back. These have one element each.
    const bool sends = request->opcode == IBV_WR_SEND || request->opcode == IBV_WR_SEND_WITH_INV ||
                       request->opcode == IBV_WR_RDMA_WRITE;
    if (sends && request->sg_list->length > max_unsignalled_bytes_) {
      request->send_flags |= IBV_SEND_SIGNALED;
    }
  }
}

uint32_t LinkSendQueue::TakeBuffer(SendUse use, uint32_t bindings_due) {
  if (FreeSlots(bindings_due) == 0) return SendBuffers::kNone;
  if (use != SendUse::kControl) {
    const uint32_t buffer = buffers_.Take(held_, source_);
    if (buffer != SendBuffers::kNone || use == SendUse::kFrames) return buffer;
  }
  return kControlSendBytes <= max_inline_bytes_ ? buffers_.TakeSpare() : SendBuffers::kNone;
}

void LinkSendQueue::DropPending() {
  GiveBackPending();
  CountReleased(static_cast<uint32_t>(pending_.size()));
  pending_.Clear(/*kept=*/false);
}

uint64_t LinkSendQueue::ReserveDrainMarker() {
  const uint64_t marker = slots_.IdOf(slots_.posted()).Pack();
  slots_.Advance(1);
  return marker;
}

void LinkSendQueue::ReleaseAll() {
  slots_.ReleaseAll([this](uint32_t buffer) { buffers_.GiveBack(buffer); });
  CountReleased(held_);
}

}  // namespace verbena::internal
