// LanePair: how it takes what arrives.

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbena/transport/soft/completion_queue.h"
#include "verbena/transport/soft/lane_pair.h"
#include "verbena/transport/soft/lane_pairs.h"

namespace verbena::internal::soft {
namespace {

// One turn receives this much in the middle of large messages, but no more than half a ring. Then
// it is time to execute them, and to tell the peer, which can send the other half meanwhile.
// (start)
constexpr size_t kBytesPerTurn = 256u << 10;
// Lines that are received at once while small messages are likely: all of a large message's that
// are among them pass through the ring. (start)
constexpr size_t kUnplacedBytes = 16384;
// A chunk this large is likely to hold large messages, and to be followed by others, with a few
// small ones between. (start)
constexpr uint32_t kLargeChunkLines = 128;
constexpr uint32_t kSmallChunksBetween = 4;
// The header of the next chunk, and its first line, which says whether its message has a place.
constexpr size_t kNextHead = TcpChunk::kBytes + kLineBytes;

// `now` may have risen since `before`, but not beyond `bound`.
bool IsProgress(uint64_t before, uint64_t now, uint64_t bound) {
  return now - before <= bound - before;
}

}  // namespace

bool LanePair::Receive(std::span<std::byte> staging, bool& some) {
  some = false;
  if (over_) return false;
  const size_t half_a_ring = size_t{arriving_ring().count()} * kLineBytes / 2;
  const size_t most = std::min(kBytesPerTurn, half_a_ring);
  for (size_t turn = 0; turn < most;) {
    Incoming incoming;
    if (!PlanReceive(staging, turn == 0, incoming)) return true;
    msghdr message{};
    message.msg_iov = incoming.parts.data();
    message.msg_iovlen = incoming.count;
    const ssize_t received = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (received <= 0) {
      End(received == 0 ? "the peer closed it" : "it was reset");
      return false;
    }
    some = true;
    if (!TakeReceived(staging, incoming, static_cast<size_t>(received))) {
      End("the peer sent nonsense");
      return false;
    }
    turn += static_cast<size_t>(received);
    // Only in the middle of a chunk something is sure to follow.
    if (static_cast<size_t>(received) < incoming.bytes || !Announced()) return true;
  }
  return true;
}

// Lines that are announced go to the ring, or to the places of their messages. What follows them is
// not known yet, and goes through staging.
bool LanePair::PlanReceive(std::span<std::byte> staging, bool first, Incoming& incoming) {
  const bool announced = Announced();
  if (announced && !PlanLines(first, incoming)) return false;
  if (incoming.ring_bytes < arriving_ring().Rest().size()) return true;
  if (announced && &arriving_ring() == &requests_) {
    const std::span<std::byte> rest = answers_.Rest();
    // A large message among them may have a place.
    incoming.answer_bytes = rest.size() < kUnplacedBytes ? rest.size() : kLineBytes;
    if (!rest.empty()) incoming.Add(rest.first(incoming.answer_bytes));
    if (incoming.answer_bytes < rest.size()) return true;
  }
  // In a stream of large chunks no more than the next head, so that its lines go to their place.
  const bool large = expects_large_ != 0 || incoming.bytes > kUnplacedBytes;
  incoming.Add(large ? staging.first(kNextHead) : staging);
  return true;
}

bool LanePair::PlanLines(bool first, Incoming& incoming) {
  RingIntake& ring = arriving_ring();
  const std::span<std::byte> rest = ring.Rest();
  incoming.ring_bytes = rest.size();
  if (rest.size() >= Places::kLeastBytes) {
    RingIntake::Incomplete message;
    const bool known = ring.FindIncomplete(message);
    if (known && message.header.length - message.arrived >= Places::kLeastBytes) {
      return PlanLargeMessage(ring, message, first, incoming);
    }
    // Large messages come one after the other, and so do small ones.
    const bool large = (known ? message.header.length : ring.last_bytes()) >= Places::kLeastBytes;
    const size_t next_head = known ? message.missing + kLineBytes : ring.ToHead();
    incoming.ring_bytes = std::min(rest.size(), large ? next_head : kUnplacedBytes);
  }
  incoming.Add(rest.first(incoming.ring_bytes));
  return true;
}

bool LanePair::PlanLargeMessage(RingIntake& ring, const RingIntake::Incomplete& message, bool first,
                                Incoming& incoming) {
  const std::span<std::byte> rest = ring.Rest();
  const uint32_t missing = message.header.length - message.arrived;
  // Up to the head of the next message, which may have a place, too.
  incoming.ring_bytes = std::min<size_t>(rest.size(), message.missing + kLineBytes);
  const bool request = &ring == &requests_;
  PlacedFragments& placed = request ? placed_requests_ : placed_answers_;
  PlacedBytes* const before = placed.Find(message.position);
  Place place;
  if (before == nullptr && placed.full()) {
    place.later = true;
  } else if (before == nullptr || (before->end() == message.arrived && !before->withdrawn)) {
    const auto most = static_cast<uint32_t>(std::min<size_t>(missing, rest.size()));
    place = request ? places_.OfRequest(*in_lane_, owner_->cq(), message, ring.messages(), most)
                    : places_.OfAnswer(*out_lane_, message, ring.messages(), most);
    if (place.bytes == 0 && !place.later && before != nullptr) before->withdrawn = true;
  }
  if (place.later && !first) return false;
  for (const iovec& part : std::span(place.parts).first(place.count)) {
    incoming.Add({static_cast<std::byte*>(part.iov_base), part.iov_len});
  }
  incoming.placed = place.bytes;
  incoming.position = message.position;
  incoming.arrived = message.arrived;
  if (place.bytes != 0 && place.bytes != missing) incoming.ring_bytes = place.bytes;
  const size_t in_ring = incoming.ring_bytes - place.bytes;
  if (in_ring != 0) incoming.Add(rest.subspan(place.bytes, in_ring));
  return true;
}

bool LanePair::TakeReceived(std::span<const std::byte> staging, const Incoming& incoming,
                            size_t bytes) {
  RingIntake& ring = arriving_ring();
  const bool request = &ring == &requests_;
  const size_t of_ring = std::min(bytes, incoming.ring_bytes);
  ring.Add(of_ring);
  if (const size_t in_place = std::min(of_ring, incoming.placed); in_place != 0) {
    PlacedFragments& placed = request ? placed_requests_ : placed_answers_;
    placed.Add(incoming.position, incoming.arrived, static_cast<uint32_t>(in_place));
    owner_->cq().copied().Add(CopyWay::kPlaced, in_place);
  }
  bytes -= of_ring;
  const size_t of_answers = std::min(bytes, incoming.answer_bytes);
  answers_.Add(of_answers);
  bytes -= of_answers;
  const bool ended = header_bytes_ == header_.size() && !Announced();
  return (!ended || EndArrival()) && Parse(staging.first(bytes)) && ShowArrived();
}

bool LanePair::Parse(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    size_t taken;
    if (header_bytes_ != header_.size()) {
      taken = std::min(bytes.size(), header_.size() - header_bytes_);
      std::memcpy(header_.data() + header_bytes_, bytes.data(), taken);
      header_bytes_ += taken;
      if (header_bytes_ == header_.size() && !BeginArrival()) return false;
    } else {
      RingIntake& ring = requests_.Rest().empty() ? answers_ : requests_;
      const std::span<std::byte> rest = ring.Rest();
      taken = std::min(bytes.size(), rest.size());
      std::memcpy(rest.data(), bytes.data(), taken);
      ring.Add(taken);
    }
    bytes = bytes.subspan(taken);
    if (header_bytes_ == header_.size() && requests_.Rest().empty() && answers_.Rest().empty() &&
        !EndArrival()) {
      return false;
    }
  }
  return true;
}

bool LanePair::BeginArrival() {
  if (!ParseChunk(header_, arriving_)) return false;
  const bool requests = arriving_.request_lines != 0 || (arriving_.flags & TcpChunk::kRequestPad);
  const bool answers = arriving_.answer_lines != 0 || (arriving_.flags & TcpChunk::kAnswerPad);
  // Nobody answers what was not asked.
  if (requests && in_lane_ == nullptr) return false;
  if (answers && out_lane_ == nullptr) return false;
  if (requests && !requests_.Begin(arriving_.request_lines, in_lane_->requests().position())) {
    return false;
  }
  if (answers && !answers_.Begin(arriving_.answer_lines, out_lane_->answers_position())) {
    return false;
  }
  if (arriving_.request_lines + arriving_.answer_lines >= kLargeChunkLines) {
    expects_large_ = kSmallChunksBetween;
  } else if (expects_large_ != 0) {
    --expects_large_;
  }
  return IsProgress(out_->header().consumed.load(std::memory_order_relaxed), arriving_.consumed,
                    requests_sent_) &&
         IsProgress(in_->header().answers_consumed.load(std::memory_order_relaxed),
                    arriving_.answers_consumed, answers_sent_);
}

bool LanePair::EndArrival() {
  header_bytes_ = 0;
  if (!ShowArrived()) return false;
  if ((arriving_.flags & TcpChunk::kRequestPad) != 0 &&
      !requests_.Pad(in_lane_->requests().position())) {
    return false;
  }
  if ((arriving_.flags & TcpChunk::kAnswerPad) != 0 &&
      !answers_.Pad(out_lane_->answers_position())) {
    return false;
  }
  out_->header().consumed.store(arriving_.consumed, std::memory_order_release);
  in_->header().answers_consumed.store(arriving_.answers_consumed, std::memory_order_release);
  return true;
}

bool LanePair::ShowArrived() {
  if (!requests_.Show() || !answers_.Show()) return false;
  out_->header().answered.store(answers_.messages(), std::memory_order_release);
  return true;
}

}  // namespace verbena::internal::soft
