#include "verbena/transport/link/supplies.h"

#include <algorithm>

namespace verbena::internal {
namespace {

// The soft device's processor copies slices as they are posted.
uint32_t BulkBytesPerTurn(const Device& device, const LinkLimits& limits) {
  const bool copies = device.kind() == DeviceKind::kSoft;
  return copies ? limits.bulk.slice_bytes : UINT32_MAX;
}

// The soft device copies what is inline, however long it is, into memory that is not pinned.
uint32_t MaxInlineBytes(const Device& device, const LinkLimits& limits) {
  const uint32_t most = std::min(device.capabilities().max_inline_bytes, limits.eager_bytes);
  return device.kind() == DeviceKind::kRdma ? std::min(most, kMaxInlineBytesOnRdma) : most;
}

}  // namespace

void SendRoom::Await(RoomWaiter& waiter, PeerSource& source) {
  if (waiter.linked()) return;
  // If no buffer is free, the next one that is given back goes to the longest waiter.
  if (buffers_.free_count() == 0 || !buffers_.IsFull(source)) {
    waiters_.Add(waiter);
    return;
  }
  source.waiters.Add(waiter);
  if (!source.linked()) List(source);
}

void SendRoom::List(PeerSource& source) {
  source.Unlink();
  // Without another source, this one may hold all buffers.
  const size_t place =
      buffers_.IsFull(source) ? std::min<size_t>(source.held, full_.size() - 1) : 0;
  full_[place].PushBack(source);
  lowest_ = std::min(lowest_, place);
}

WaiterQueue<RoomWaiter>* SendRoom::Next() {
  const size_t free = buffers_.free_count();
  if (free == 0) return nullptr;
  if (!waiters_.empty()) return &waiters_;
  while (lowest_ < free) {
    PeerSource* source = full_[lowest_].Front();
    if (source == nullptr) {
      ++lowest_;
    } else if (source->waiters.empty()) {
      source->Unlink();
    } else if (buffers_.IsFull(*source)) {
      List(*source);
    } else {
      return &source->waiters;
    }
  }
  return nullptr;
}

// A link that is woken may post, which makes room again: the loop sees it. Whoever finds no room
// waits at the end of the list that fits the reason.
void SendRoom::Wake() {
  if (waking_) return;
  waking_ = true;
  while (WaiterQueue<RoomWaiter>* waiters = Next()) {
    waiters->ServeFirst([](RoomWaiter& first) { first.OnRoom(); });
  }
  waking_ = false;
}

LinkSupplies::LinkSupplies(SendMemory memory, const Device& device, const LinkLimits& limits)
    : max_inline_bytes_(MaxInlineBytes(device, limits)),
      bulk_bytes_per_turn_(BulkBytesPerTurn(device, limits)),
      memory_(std::move(memory)),
      room_(std::in_place, *memory_.buffers),
      chain_(limits.send_queue_depth, memory_.buffers->lkey()) {}

PeerSource& LinkSupplies::JoinSource(const std::string& name, bool bounded) {
  PeerSource& source = sources_.Join(name, bounded);
  buffers().ShareAmong(sources_.size());
  return source;
}

void LinkSupplies::LeaveSource(PeerSource& source) {
  room_->Note(source);
  if (!sources_.Leave(source)) return;
  buffers().ShareAmong(sources_.size());
  // A source that is left alone may hold more than before.
  PeerSource* const alone = sources_.alone();
  if (alone != nullptr) room_->Note(*alone);
}

}  // namespace verbena::internal
