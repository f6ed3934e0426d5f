#include "verbena/transport/link/link_supplies.h"

#include <algorithm>

namespace verbena::internal {
namespace {

// The soft device's processor copies slices as they are posted.
uint32_t BulkBytesPerTurn(const Device& device, const LinkLimits& limits) {
  const bool copies = device.kind() == DeviceKind::kSoft;
  return copies ? limits.bulk.slice_bytes : UINT32_MAX;
}

}  // namespace

LinkSupplies::LinkSupplies(SendMemory memory, const Device& device, const LinkLimits& limits)
    : max_inline_bytes_(std::min(device.capabilities().max_inline_bytes, limits.eager_bytes)),
      memory_(std::move(memory)),
      room_(std::in_place, *memory_.buffers),
      chain_(limits.send_queue_depth, memory_.buffers->lkey()),
      bulk_(BulkBytesPerTurn(device, limits)) {}

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
