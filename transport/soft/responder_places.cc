// Responder: the places of WRITEs whose payload a TCP connection receives past the ring.

#include <cstring>

#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/lane_pair.h"
#include "verbena/transport/soft/queue_pair.h"
#include "verbena/transport/soft/responder.h"

namespace verbena::internal::soft {

bool Responder::CursorOfWrites(WriteCursor& cursor) const {
  if (current_ != Opcode::kNone && current_ != Opcode::kWrite) return false;
  cursor = {.writing = current_ == Opcode::kWrite,
            .psn = expected_psn_,
            .range = write_,
            .written = written_,
            .connection = connection_};
  return true;
}

// As Execute and Write. A WRITE with immediate may be refused for want of a receive, so its first
// fragment has no place.
bool Responder::FindPlace(const MessageHeader& request, const std::byte* payload,
                          WriteCursor& cursor, uint64_t& address) const {
  const bool first = (request.flags & kFirst) != 0;
  const bool last = (request.flags & kLast) != 0;
  if (request.opcode != Opcode::kWrite || request.psn != cursor.psn || first == cursor.writing) {
    return false;
  }
  if (cursor.connection != connection_) return false;
  const auto allowed = [&](uint64_t begin, uint64_t length) {
    return RemoteAllowed(cursor.range.rkey, begin, length, IBV_ACCESS_REMOTE_WRITE);
  };
  uint32_t bytes = request.length;
  if (first) {
    if (bytes < sizeof(TargetRange) || (request.flags & kImmediate) != 0) return false;
    std::memcpy(&cursor.range, payload, sizeof(TargetRange));
    bytes -= sizeof(TargetRange);
    cursor.written = 0;
    if (cursor.range.length > kMaxMessageBytes ||
        !allowed(cursor.range.address, cursor.range.length)) {
      return false;
    }
  } else if (!IsOfThisWrite(request)) {
    return false;
  }
  const uint64_t left = cursor.range.length - cursor.written;
  if (bytes > left || (last && bytes != left)) return false;
  address = cursor.range.address + cursor.written;
  if (!allowed(address, bytes)) return false;
  cursor.written += bytes;
  cursor.writing = !last;
  ++cursor.psn;
  return true;
}

bool Responder::StoreRest(InLane& lane, const std::byte* data, uint32_t bytes) {
  const uint32_t prefix = static_cast<uint32_t>(data - lane.requests().payload());
  PlacedBytes placed = lane.pair()->TakePlacedRequest(lane.requests().position());
  if (placed.withdrawn) return false;
  if (placed.bytes != 0) placed.from -= prefix;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
  auto* to = reinterpret_cast<std::byte*>(write_.address + written_);
  std::memcpy(to, data, placed.from);
  std::memcpy(to + placed.end(), data + placed.end(), bytes - placed.end());
  qp_.receive_side().copied().Add(CopyWay::kRing, bytes - placed.bytes);
  return true;
}

}  // namespace verbena::internal::soft
