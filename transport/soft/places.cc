#include "verbena/transport/soft/places.h"

#include <algorithm>

#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/queue_pair.h"

namespace verbena::internal::soft {

Place Places::OfRequest(InLane& lane, CompletionQueue& cq, const RingIntake::Incomplete& message,
                        uint64_t number, uint32_t most) {
  const MessageHeader& request = message.header;
  if (request.opcode != Opcode::kWrite || lane.broken()) return {};
  QueuePair* qp = FindExecutor(lane, request, cq);
  if (qp == nullptr) return {};
  if (next_write_.number == number) write_ = next_write_;
  // Until this one has a place.
  next_write_.number = kNone;
  Responder::WriteCursor cursor;
  if (message.position == lane.requests().position()) {
    // An earlier READ has still to read what this WRITE may write over.
    if (lane.pending_read().active) return {.later = true};
    if (!qp->responder().CursorOfWrites(cursor)) return {};
    // Its first bytes arrived before the QP was reset.
    if (write_.number == number && write_.cursor.connection != cursor.connection) return {};
  } else if (write_.number == number && write_.qpn == request.destination &&
             write_.cursor.writing) {
    cursor = write_.cursor;
  } else {
    return {.later = true};
  }
  write_ = {.number = number, .qpn = request.destination, .cursor = cursor};
  uint64_t address = 0;
  if (!qp->responder().FindPlace(request, message.payload, cursor, address)) return {};
  if (cursor.writing) {
    next_write_ = {.number = number + 1, .qpn = request.destination, .cursor = cursor};
  }
  const uint32_t prefix = (request.flags & kFirst) != 0 ? uint32_t{sizeof(TargetRange)} : 0;
  Place place;
  place.bytes = std::min(most, request.length - message.arrived);
  place.count = 1;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs address memory by integers.
  place.parts[0] = {.iov_base = reinterpret_cast<void*>(address + message.arrived - prefix),
                    .iov_len = place.bytes};
  return place;
}

Place Places::OfAnswer(OutLane& lane, const RingIntake::Incomplete& message, uint64_t number,
                       uint32_t most) {
  const MessageHeader& answer = message.header;
  if (answer.opcode != Opcode::kData || lane.failed()) return {};
  QueuePair* qp = lane.FindQp(answer.destination);
  if (qp == nullptr) return {};
  if (next_read_.number == number) read_ = next_read_;
  uint32_t offset = 0;
  if (message.position == lane.answers_position()) {
    offset = qp->send_queue().answer_offset();
  } else if (read_.number == number && read_.qpn == answer.destination && read_.psn == answer.psn) {
    offset = read_.offset;
  } else {
    return {.later = true};
  }
  read_ = {.number = number, .qpn = answer.destination, .psn = answer.psn, .offset = offset};
  Place place;
  const uint32_t bytes = std::min(most, answer.length - message.arrived);
  place.count = qp->send_queue().FindPlace(answer, offset, message.arrived, bytes, place.parts);
  for (size_t i = 0; i < place.count; ++i) {
    place.bytes += static_cast<uint32_t>(place.parts[i].iov_len);
  }
  next_read_ = read_;
  next_read_.offset += answer.length;
  const bool last = (answer.flags & kLast) != 0;
  next_read_.number = place.count == 0 || last ? kNone : number + 1;
  return place;
}

}  // namespace verbena::internal::soft
