// The bytes of a SEND, in one of two forms: a SendHeader and frames, or one compact frame.
// proto/WIRE.md is the specification.
//
// Little-endian and fixed. FrameParser is the only reader of a peer's bytes: a pure function of
// them, which checks every length before it is used, never allocates, and stops at the first fault.
// A SEND without frames returns credits and nothing else.

#ifndef VERBENA_TRANSPORT_LINK_WIRE_FORMAT_H_
#define VERBENA_TRANSPORT_LINK_WIRE_FORMAT_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace verbena::internal {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian and its structs are copied as they lie in memory");

// Flags of a SEND, its first byte.
inline constexpr uint8_t kSendSpendsReserve = 1;  // uses a reserve credit; has no frames
inline constexpr uint8_t kSendStarved = 2;        // its sender waits for credits: issue it more
inline constexpr uint8_t kSendKnownFlags = kSendSpendsReserve | kSendStarved;
// A CompactHeader, which has the flags below beside kSendStarved.
inline constexpr uint8_t kSendCompact = 0x80;
inline constexpr uint8_t kCompactResponse = 4;      // a response; otherwise a request
inline constexpr uint8_t kCompactHasBulk = 8;       // as kFrameHasBulk
inline constexpr uint8_t kCompactHasDeadline = 16;  // a u32, deadline_us, follows
inline constexpr uint8_t kCompactHasContext = 32;   // as kFrameHasContext
inline constexpr uint8_t kCompactKnownFlags = kSendCompact | kSendStarved | kCompactResponse |
                                              kCompactHasBulk | kCompactHasDeadline |
                                              kCompactHasContext;

struct SendHeader {
  uint8_t flags = 0;     // kSend…
  uint8_t reserved = 0;  // zero
  uint16_t frame_count = 0;
  // Ordinary credits issued to the receiver of this SEND since the link began, modulo 2^32.
  uint32_t credits_issued = 0;
  // Ordinary credits that the sender of this SEND returned on recall, modulo 2^32.
  uint32_t credits_returned = 0;
  // SENDs on reserve credits that arrived at the sender of this SEND, modulo 2^16.
  uint16_t reserve_seen = 0;
  uint16_t reserved_too = 0;  // zero

  bool is_compact() const { return (flags & kSendCompact) != 0; }
};
static_assert(sizeof(SendHeader) == 16);

enum class FrameKind : uint8_t {
  kRequest = 1,
  kResponse = 2,
  kCancel = 3,  // the caller no longer wants the call
  kPing = 4,    // answer with kPong
  kPong = 5,
  kRecall = 6,          // return spare credits, `argument` in all at most
  kGoAway = 7,          // start no more calls on this link
  kLandingNeeded = 8,   // the response is larger than what was leased for it
  kLanding = 9,         // memory for that response
  kGrant = 10,          // memory for the payload of a request to come, in slot `argument`
  kRevoke = 11,         // return the grant of slot `argument`, unless a request used it
  kReturn = 12,         // the grant is returned
  kStreamMessage = 13,  // a message of a stream, or a part of one
  kStreamWindow = 14,   // how far the receiver's window of a stream, or of all streams, reaches
  kStreamEnd = 15,      // the client sends no more messages on a stream
};
inline constexpr FrameKind kLastFrameKind = FrameKind::kStreamEnd;

// Flags of a kRequest or kResponse: what its body begins with, ahead of the message. If it has
// both, the context comes first.
inline constexpr uint8_t kFrameHasBulk = 1;     // what it moves one-sided
inline constexpr uint8_t kFrameHasContext = 2;  // the call's context
// The kRequest begins a stream.
inline constexpr uint8_t kFrameOpensStream = 4;
// kStreamMessage: the next one goes on with the same message. kRequest that opens a stream: its
// message follows as a kStreamMessage; kResponse of a stream: the reply came as one.
inline constexpr uint8_t kFrameMessageApart = 8;
// The kStreamWindow is that of all streams of the link.
inline constexpr uint8_t kFrameOfLink = 16;

// The flags that a frame of each kind may have, by kind.
inline constexpr uint8_t kFrameKnownFlags[static_cast<size_t>(kLastFrameKind) + 1] = {
    0,
    kFrameHasBulk | kFrameHasContext | kFrameOpensStream | kFrameMessageApart,  // kRequest
    kFrameHasBulk | kFrameHasContext | kFrameMessageApart,                      // kResponse
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    kFrameMessageApart,  // kStreamMessage
    kFrameOfLink,        // kStreamWindow
    0,
};

struct FrameHeader {
  // The caller's slot, and how often it was used. So a late frame of an ended call differs from a
  // current one.
  uint16_t call_slot = 0;
  // kRequest: the number that the handshake gave the method. Otherwise 0.
  uint16_t method = 0;
  uint32_t call_generation = 0;
  // kRequest: microseconds left until the call's deadline, the lower 32 bits; `argument` has the
  // upper ones. 0 in both means none.
  uint32_t deadline_us = 0;
  uint32_t body_bytes = 0;
  FrameKind kind = FrameKind::kRequest;
  uint8_t flags = 0;        // kFrame…
  uint8_t status_code = 0;  // kResponse: a canonical status code
  uint8_t outcome = 0;      // kResponse: an Outcome
  // kRecall: credits; kGrant, kRevoke, kReturn: a slot; kRequest: see deadline_us; kStreamWindow:
  // the limit; kStreamMessage: the bytes of a message whose first part this is.
  uint32_t argument = 0;

  uint64_t deadline() const { return uint64_t{argument} << 32 | deadline_us; }
  void set_deadline(uint64_t microseconds) {
    deadline_us = static_cast<uint32_t>(microseconds);
    argument = static_cast<uint32_t>(microseconds >> 32);
  }
};
static_assert(sizeof(FrameHeader) == 24);

// All of a SEND that has one frame, a request or a successful response; its body follows, without
// padding, and ends where the SEND ends. The counters that it lacks are those of the SEND before.
struct CompactHeader {
  uint8_t flags = 0;            // kSendCompact, kSendStarved, kCompact…
  uint8_t reserved = 0;         // zero
  uint16_t credits_issued = 0;  // the lower 16 bits
  uint32_t call_generation = 0;
  uint16_t call_slot = 0;
  uint16_t method = 0;
};
static_assert(sizeof(CompactHeader) == 12);

constexpr size_t kFrameAlignment = 8;

// The bytes that a frame with a body of `body_bytes` takes in a SEND.
constexpr size_t FrameBytes(size_t body_bytes) {
  return sizeof(FrameHeader) +
         (body_bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}

// The largest body that fits one SEND of `eager_bytes`.
constexpr size_t MaxBodyBytes(size_t eager_bytes) {
  return eager_bytes - sizeof(SendHeader) - sizeof(FrameHeader);
}

// Whether `frame` can be the only one of a compact SEND.
inline bool HasCompactForm(const FrameHeader& frame) {
  return frame.argument == 0 && (frame.flags & (kFrameOpensStream | kFrameMessageApart)) == 0 &&
         (frame.kind == FrameKind::kRequest ||
          (frame.kind == FrameKind::kResponse && frame.status_code == 0));
}

// Writes the compact header of a SEND right in front of the body of its only frame, over the end of
// that frame's header in the buffer, of which `frame` is a copy. Returns its length. Of the
// counters it has credits_issued alone: the peer must know the others. Precondition:
// HasCompactForm(frame).
inline size_t WriteCompact(const SendHeader& send, FrameHeader frame, char* body) {
  CompactHeader header;
  header.flags = static_cast<uint8_t>(kSendCompact | send.flags);
  if (frame.kind == FrameKind::kResponse) header.flags |= kCompactResponse;
  if (frame.flags != 0) {
    if ((frame.flags & kFrameHasBulk) != 0) header.flags |= kCompactHasBulk;
    if ((frame.flags & kFrameHasContext) != 0) header.flags |= kCompactHasContext;
  }
  header.credits_issued = static_cast<uint16_t>(send.credits_issued);
  header.call_generation = frame.call_generation;
  header.call_slot = frame.call_slot;
  header.method = frame.method;
  size_t bytes = sizeof(header);
  if (frame.deadline_us != 0) {
    header.flags |= kCompactHasDeadline;
    bytes += sizeof(frame.deadline_us);
    std::memcpy(body - sizeof(frame.deadline_us), &frame.deadline_us, sizeof(frame.deadline_us));
  }
  std::memcpy(body - bytes, &header, sizeof(header));
  return bytes;
}

enum class WireFault : uint8_t {
  kNone,
  kTruncatedHeader,  // shorter than a SendHeader
  kUnknownFlags,     // a flag or reserved byte that this version does not know
  kTruncatedFrame,   // a frame header or body past the end
  kUnknownKind,
  kTrailingBytes,      // more bytes than frame_count frames
  kReserveWithFrames,  // the reserve is for SENDs without frames
};

const char* WireFaultName(WireFault fault);

// Reads one SEND.
//
//   FrameParser parser(bytes, size);
//   while (parser.Next()) Use(parser.frame(), parser.body());
//   if (parser.fault() != WireFault::kNone) Close(…);
class FrameParser {
 public:
  FrameParser(const char* bytes, size_t size) : next_(bytes), end_(bytes + size) {
    const bool is_compact = size > 0 && (static_cast<uint8_t>(*bytes) & kSendCompact) != 0;
    fault_ = is_compact ? ReadCompact(size) : ReadHeader(size);
    if (fault_ == WireFault::kNone) frames_left_ = header_.frame_count;
  }

  // False at the end, and at the first fault. A frame's header and body are valid until the next
  // call.
  bool Next() {
    if (frames_left_ == 0) {
      if (fault_ == WireFault::kNone && next_ != end_) fault_ = WireFault::kTrailingBytes;
      return false;
    }
    if (header_.is_compact()) {
      frames_left_ = 0;
      next_ = end_;
      return true;
    }
    fault_ = ReadFrame();
    frames_left_ = fault_ == WireFault::kNone ? frames_left_ - 1 : 0;
    return fault_ == WireFault::kNone;
  }

  WireFault fault() const { return fault_; }
  // Valid unless the constructor found a fault. Of a compact SEND only the flags and the lower 16
  // bits of credits_issued.
  const SendHeader& header() const { return header_; }
  const FrameHeader& frame() const { return frame_; }
  const char* body() const { return body_; }
  // No frame follows frame().
  bool at_last() const { return frames_left_ == 0; }

 private:
  WireFault ReadHeader(size_t size) {
    if (size < sizeof(SendHeader)) return WireFault::kTruncatedHeader;
    std::memcpy(&header_, next_, sizeof(header_));
    next_ += sizeof(header_);
    const bool unknown =
        (header_.flags & ~kSendKnownFlags) != 0 || (header_.reserved | header_.reserved_too) != 0;
    if (unknown) return WireFault::kUnknownFlags;
    const bool spends_reserve = (header_.flags & kSendSpendsReserve) != 0;
    return spends_reserve && header_.frame_count != 0 ? WireFault::kReserveWithFrames
                                                      : WireFault::kNone;
  }

  WireFault ReadCompact(size_t size) {
    CompactHeader header;
    if (size < sizeof(header)) return WireFault::kTruncatedHeader;
    std::memcpy(&header, next_, sizeof(header));
    const bool is_response = (header.flags & kCompactResponse) != 0;
    const bool has_deadline = (header.flags & kCompactHasDeadline) != 0;
    if ((header.flags & ~kCompactKnownFlags) != 0 || header.reserved != 0 ||
        (is_response && has_deadline)) {
      return WireFault::kUnknownFlags;
    }
    next_ += sizeof(header);
    if (has_deadline) {
      if (size < sizeof(header) + sizeof(frame_.deadline_us)) return WireFault::kTruncatedHeader;
      std::memcpy(&frame_.deadline_us, next_, sizeof(frame_.deadline_us));
      next_ += sizeof(frame_.deadline_us);
    }
    header_.flags = header.flags & (kSendCompact | kSendStarved);
    header_.frame_count = 1;
    header_.credits_issued = header.credits_issued;
    frame_.kind = is_response ? FrameKind::kResponse : FrameKind::kRequest;
    if ((header.flags & kCompactHasBulk) != 0) frame_.flags = kFrameHasBulk;
    if ((header.flags & kCompactHasContext) != 0) frame_.flags |= kFrameHasContext;
    frame_.call_generation = header.call_generation;
    frame_.call_slot = header.call_slot;
    frame_.method = header.method;
    frame_.body_bytes = static_cast<uint32_t>(end_ - next_);
    body_ = next_;
    return WireFault::kNone;
  }

  WireFault ReadFrame() {
    const auto left = static_cast<size_t>(end_ - next_);
    if (left < sizeof(FrameHeader)) return WireFault::kTruncatedFrame;
    std::memcpy(&frame_, next_, sizeof(frame_));
    // Compared before it is rounded up, so that no length can wrap around.
    if (frame_.body_bytes > left - sizeof(FrameHeader)) return WireFault::kTruncatedFrame;
    const size_t frame_bytes = FrameBytes(frame_.body_bytes);
    if (frame_bytes > left) return WireFault::kTruncatedFrame;
    if (frame_.kind < FrameKind::kRequest || frame_.kind > kLastFrameKind) {
      return WireFault::kUnknownKind;
    }
    const uint8_t allowed = kFrameKnownFlags[static_cast<size_t>(frame_.kind)];
    if ((frame_.flags & ~allowed) != 0) return WireFault::kUnknownFlags;
    body_ = next_ + sizeof(FrameHeader);
    next_ += frame_bytes;
    return WireFault::kNone;
  }

  const char* next_;
  const char* const end_;
  const char* body_ = nullptr;
  uint32_t frames_left_ = 0;
  WireFault fault_ = WireFault::kNone;
  SendHeader header_;
  FrameHeader frame_;
};

// ControlFrames: which of a link's control frames are due, and how many have travelled. Beside it,
// the headers of these frames.
//
// At most one of each kind is due at a time, and leaves with a flush: a later reason for the same
// frame adds nothing. Of PONGs two are due if PINGs with and without a body have come: a long one
// may wait for a buffer for as long as peers hold them, and the short one must not. Part of a
// LinkSender, on its executor's thread.
struct ControlFrames {
  // The number of kinds.
  static constexpr uint32_t kKinds = 3;

  bool pong = false;
  bool ping = false;
  bool recall = false;
  // The answer to a RECALL: a SEND, whatever it carries.
  bool answer = false;
  // Which PONGs are due: one without a body, and one with a body of that length, which answers all
  // PINGs; 0: none.
  bool short_pong = false;
  uint32_t pong_padding = 0;
  // The body of the PING that is due.
  uint32_t ping_padding = 0;
  // PING, PONG and RECALL that have travelled, in both directions.
  uint64_t count = 0;

  // Whether a frame is due. `answer` is not one: any SEND will do.
  bool any_due() const { return pong || ping || recall; }
};

inline FrameHeader PingFrame() {
  FrameHeader frame;
  frame.kind = FrameKind::kPing;
  return frame;
}

inline FrameHeader PongFrame() {
  FrameHeader frame;
  frame.kind = FrameKind::kPong;
  return frame;
}

// The peer must return unspent credits until it has returned `limit` in all, modulo 2^32.
inline FrameHeader RecallFrame(uint32_t limit) {
  FrameHeader frame;
  frame.kind = FrameKind::kRecall;
  frame.argument = limit;
  return frame;
}

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_WIRE_FORMAT_H_
