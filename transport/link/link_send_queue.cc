#include "verbena/transport/link/link_send_queue.h"

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {
namespace {

constexpr uint32_t kControlSendBytes = sizeof(SendHeader) + ControlFrames::kKinds * FrameBytes(0);

}  // namespace

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

void LinkSendQueue::PostDrainMarker() {
  ibv_send_wr marker = {};
  marker.wr_id = slots_.IdOf(slots_.posted()).Pack();
  marker.opcode = IBV_WR_SEND;
  marker.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  if (const int error = ibv_post_send(qp_, &marker, &refused); error != 0) {
    Log(LogLevel::kWarning,
        ErrnoStatus(error, fmt::format("draining QPN {:#x}", qp_->qp_num)).ToString());
    return;
  }
  slots_.Advance(1);
}

void LinkSendQueue::ReleaseAll() {
  slots_.ReleaseAll([this](uint32_t buffer) { buffers_.GiveBack(buffer); });
  CountReleased(held_);
}

}  // namespace verbena::internal
