// A ring: a one-way stream of messages through memory that two threads, or two processes, share.
//
// The memory is an array of 64-byte lines. A message starts on a line with its control word, which
// is stored last, so that a reader that spins on the next line sees a small message arrive with the
// one cache line that holds all of it; there is no producer index to miss on. Before a message is
// published, the control word of the line after it is cleared: a reader never takes stale bytes for
// a message. Messages do not wrap: a pad message fills the end of the ring.
//
// RingWriter and RingReader are the private ends. Positions count lines from the ring's creation
// and never wrap. The reader's progress travels back outside the ring (lane.h), and the writer
// reuses lines only once it has taken note of it with Release().
//
// One writer thread and one reader thread at a time: the owners' locks see to that. The other side
// is not trusted to be well: a control word that makes no sense, or progress that is out of bounds,
// is reported as broken and never followed.
//
// RingIntake, LentPayloads and PlacedFragments serve the two copies that a ring has over TCP.

#ifndef VERBENA_TRANSPORT_SOFT_RING_H_
#define VERBENA_TRANSPORT_SOFT_RING_H_

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "verbena/transport/base/check.h"

namespace verbena::internal::soft {

// The messages that travel through a ring: 16 bytes of header, then payload.
//
// A message is one fragment of a verbs operation, or an answer to one. Both ends of a wire are the
// same build of Verbena on the same machine, so integers are in host order. Nothing in a message is
// trusted: Decode never fails, and whoever reads checks each field against its own tables.

inline constexpr size_t kLineBytes = 64;
inline constexpr size_t kHeaderBytes = 16;
// Payload of one fragment, the prefix of a one-sided request included. Small enough that fragments
// of many QPs interleave, large enough that a copy outweighs its header.
inline constexpr size_t kMaxFragmentBytes = 16384;

enum class Opcode : uint8_t {
  kNone = 0,  // nothing published here yet
  kPad,       // skip to the start of the ring
  // Requests, initiator to target.
  kSend,
  kWrite,
  kRead,
  kCompareSwap,
  kFetchAdd,
  kSendInvalidate,  // a kSend whose `immediate` is the target's rkey to invalidate
  // Answers, target to initiator.
  kRefused,  // payload: RefusedFragment
  kData,     // bytes of a READ, or the old value of an atomic
};
inline constexpr Opcode kLastRequest = Opcode::kSendInvalidate;
inline constexpr uint8_t kLastOpcode = static_cast<uint8_t>(Opcode::kData);

enum MessageFlags : uint8_t {
  kFirst = 1 << 0,      // first fragment of its operation
  kLast = 1 << 1,       // last fragment of its operation
  kImmediate = 1 << 2,  // carries immediate data; a WRITE with it consumes a receive, as SENDs do
  kSolicited = 1 << 3,
  kWatched = 1 << 4,  // the initiator waits to see this message consumed: report it without delay
  kPlaced = 1 << 5,   // a WRITE whose data the initiator has put in place: only its range follows
};

struct MessageHeader {
  Opcode opcode = Opcode::kNone;
  uint8_t flags = 0;
  uint16_t length = 0;  // payload bytes that follow
  uint32_t immediate = 0;
  uint32_t destination = 0;  // 24-bit QPN on the side that reads the message
  uint32_t source = 0;       // 24-bit QPN on the side that wrote it
  uint16_t psn = 0;          // counts the fragments of a QP

  // The word that is stored last, and so publishes the message. Never 0.
  uint64_t Control() const {
    return uint64_t{static_cast<uint8_t>(opcode)} | uint64_t{flags} << 8 | uint64_t{length} << 16 |
           uint64_t{immediate} << 32;
  }
  uint64_t Route() const {
    return uint64_t{destination} | uint64_t{source} << 24 | uint64_t{psn} << 48;
  }
  static MessageHeader Decode(uint64_t control, uint64_t route) {
    MessageHeader header;
    header.opcode = static_cast<Opcode>(control & 0xff);
    header.flags = static_cast<uint8_t>(control >> 8);
    header.length = static_cast<uint16_t>(control >> 16);
    header.immediate = static_cast<uint32_t>(control >> 32);
    header.destination = static_cast<uint32_t>(route & 0xffffff);
    header.source = static_cast<uint32_t>(route >> 24 & 0xffffff);
    header.psn = static_cast<uint16_t>(route >> 48);
    return header;
  }
};

// Precedes the data of the first fragment of a one-sided request.
struct TargetRange {
  uint64_t address = 0;
  uint64_t length = 0;
  uint32_t rkey = 0;
  uint32_t reserved = 0;
};

struct AtomicOperands {
  uint64_t compare_or_add = 0;
  uint64_t swap = 0;
};

// Why a target did not execute a request.
enum class NakReason : uint32_t {
  kNoReceive,       // RNR NAK: retried after the timer
  kNotReady,        // the destination QP is not in RTR yet: retried until the transport's timeout
  kUnreachable,     // no such QP, or it is in error, or it is connected to somebody else
  kSequence,        // not the fragment that was expected
  kInvalidRequest,  // IBV_WC_REM_INV_REQ_ERR
  kAccess,          // IBV_WC_REM_ACCESS_ERR
  kOperation,       // IBV_WC_REM_OP_ERR
};

struct RefusedFragment {
  uint64_t position = 0;  // line of the refused fragment in the request ring
  NakReason reason = NakReason::kNoReceive;
  uint32_t rnr_timer = 0;  // ibv_qp_attr::min_rnr_timer of the target
};

struct alignas(kLineBytes) RingLine {
  std::atomic<uint64_t> control;
  uint64_t route;
  std::byte payload[kLineBytes - kHeaderBytes];
};
static_assert(sizeof(RingLine) == kLineBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Lines of a message with `payload_bytes`.
constexpr uint32_t LinesOf(size_t payload_bytes) {
  return static_cast<uint32_t>((kHeaderBytes + payload_bytes + kLineBytes - 1) / kLineBytes);
}

class RingWriter {
 public:
  // `count` is a power of two, and holds at least four of the largest messages. The memory is zero.
  RingWriter(RingLine* lines, uint32_t count) : lines_(lines), count_(count) {
    VERBENA_CHECK(std::has_single_bit(count) && count >= 4 * LinesOf(kMaxFragmentBytes))
        << "lines " << count;
  }

  // Returns the place for the next message's payload, or null while the ring is full. Writes a pad
  // first when the message does not fit before the end.
  std::byte* Reserve(size_t payload_bytes) {
    uint32_t lines = LinesOf(payload_bytes);
    const uint32_t to_end = count_ - Index(position_);
    if (lines > to_end) {
      if (!HasRoom(to_end + lines)) return nullptr;
      Pad(to_end);
    } else if (!HasRoom(lines)) {
      return nullptr;
    }
    return lines_[Index(position_)].payload;
  }

  // Publishes the message whose payload was written where Reserve said, with the same length.
  void Publish(const MessageHeader& header) {
    RingLine& line = lines_[Index(position_)];
    position_ += LinesOf(header.length);
    lines_[Index(position_)].control.store(0, std::memory_order_relaxed);
    line.route = header.Route();
    line.control.store(header.Control(), std::memory_order_release);
  }

  // True when Reserve would succeed.
  bool HasRoomFor(size_t payload_bytes) const {
    const uint32_t lines = LinesOf(payload_bytes);
    const uint32_t to_end = count_ - Index(position_);
    return HasRoom(lines > to_end ? to_end + lines : lines);
  }

  // Lines before `position` may be reused. False, and nothing changes, when that is out of bounds.
  bool Release(uint64_t position) {
    if (position - released_ > position_ - released_) return false;
    released_ = position;
    return true;
  }

  // The payload of a message that was written at `position` and is not released yet.
  const std::byte* PayloadAt(uint64_t position) const { return lines_[Index(position)].payload; }

  uint64_t position() const { return position_; }
  uint64_t released() const { return released_; }
  uint32_t count() const { return count_; }

  // The end of the lines from `from` on that lie behind one another and are all messages: the end
  // of the ring, a pad, or position(). Precondition: at most one pad was written since.
  uint64_t EndOfRun(uint64_t from) const {
    return pad_ >= from && pad_ < position_ ? pad_ : std::min(position_, NextStart(from));
  }
  bool IsPad(uint64_t position) const { return pad_ == position && pad_ < position_; }
  // The first line behind `position` that is the start of the ring.
  uint64_t NextStart(uint64_t position) const { return (position | (count_ - 1)) + 1; }

 private:
  uint32_t Index(uint64_t position) const { return static_cast<uint32_t>(position) & (count_ - 1); }
  // One line beyond the message is needed too: it is cleared.
  bool HasRoom(uint32_t lines) const { return position_ - released_ + lines < count_; }

  void Pad(uint32_t lines) {
    lines_[0].control.store(0, std::memory_order_relaxed);
    MessageHeader pad{.opcode = Opcode::kPad};
    lines_[Index(position_)].control.store(pad.Control(), std::memory_order_release);
    pad_ = position_;
    position_ += lines;
  }

  RingLine* lines_;
  uint32_t count_;
  uint64_t position_ = 0;        // the next line to write
  uint64_t released_ = 0;        // lines before it are free
  uint64_t pad_ = ~uint64_t{0};  // where the latest pad is
};

class RingReader {
 public:
  enum class State { kEmpty, kMessage, kBroken };

  RingReader(RingLine* lines, uint32_t count) : lines_(lines), count_(count) {}

  // Looks at the next message without consuming it. The header is a private, bounds-checked copy;
  // the payload is still the writer's to scribble on.
  State Peek(MessageHeader& header) {
    uint64_t control = Line().control.load(std::memory_order_acquire);
    if (control == 0) return State::kEmpty;
    if ((control & 0xff) == static_cast<uint8_t>(Opcode::kPad)) {
      position_ += count_ - Index();
      control = Line().control.load(std::memory_order_acquire);
      if (control == 0) return State::kEmpty;
    }
    header = MessageHeader::Decode(control, Line().route);
    const uint8_t opcode = static_cast<uint8_t>(header.opcode);
    if (opcode <= static_cast<uint8_t>(Opcode::kPad) || opcode > kLastOpcode ||
        header.length > kMaxFragmentBytes || LinesOf(header.length) > count_ - Index()) {
      return State::kBroken;
    }
    return State::kMessage;
  }

  bool Empty() const {
    return lines_[static_cast<uint32_t>(position_) & (count_ - 1)].control.load(
               std::memory_order_acquire) == 0;
  }

  // The payload of the message that Peek returned.
  const std::byte* payload() const {
    return lines_[static_cast<uint32_t>(position_) & (count_ - 1)].payload;
  }
  void Consume(const MessageHeader& header) { position_ += LinesOf(header.length); }

  uint64_t position() const { return position_; }
  uint32_t count() const { return count_; }

 private:
  uint32_t Index() const { return static_cast<uint32_t>(position_) & (count_ - 1); }
  RingLine& Line() { return lines_[Index()]; }

  RingLine* lines_;
  uint32_t count_;
  uint64_t position_ = 0;  // the next line to read
};

// LaneGeometry: how many lines the two rings of a lane have (lane.h). A value.
struct LaneGeometry {
  uint32_t request_lines = 4096;
  uint32_t answer_lines = 2048;

  // Checks the geometry of a lane that a peer announces: within what anybody configures.
  bool valid() const {
    constexpr uint32_t kMin = 4 * (kMaxFragmentBytes + kLineBytes) / kLineBytes;
    constexpr uint32_t kMax = (1u << 30) / kLineBytes;
    const auto good = [](uint32_t lines) {
      return lines >= kMin && lines <= kMax && (lines & (lines - 1)) == 0;
    };
    return good(request_lines) && good(answer_lines);
  }
};

// RingIntake: the copy of a peer's ring on this side of a TCP wire, as its bytes arrive.
//
// A RingReader takes each control word that is not 0 for a message. Bytes may arrive in pieces of
// any size, so a message that is there only in part must not show: its control word is kept back,
// and 0 stands in its place, until its last line has arrived. The control word behind the last
// message is always 0.
//
// Used by one thread at a time, under the CQ's lock, which the ring's reader holds too. Nothing
// that arrives is trusted: lines never overwrite what the reader has not consumed, and a control
// word is followed only within the ring.
class RingIntake {
 public:
  RingIntake(RingLine* lines, uint32_t count) : lines_(lines), count_(count) {}

  // The next `lines` of the ring are about to arrive. `consumed` is the reader's position. False
  // when they do not fit before the end of the ring, or over what is consumed.
  bool Begin(uint32_t lines, uint64_t consumed);
  // The place of the bytes that are still missing.
  std::span<std::byte> Rest() {
    return {reinterpret_cast<std::byte*>(lines_) + Offset(arrived_), end_ - arrived_};
  }
  // `bytes` of Rest() have arrived, or those of them that are payload, at another place.
  void Add(size_t bytes) { arrived_ += bytes; }

  // The message whose first line is here, and the rest is not. Show() has been called since bytes
  // were added.
  struct Incomplete {
    uint64_t position = 0;  // its first line
    MessageHeader header;
    const std::byte* payload = nullptr;  // in the ring
    uint32_t arrived = 0;                // bytes of it that are here
    uint64_t missing = 0;                // bytes up to the end of its last line
  };
  // False when there is none.
  bool FindIncomplete(Incomplete& message);
  // Bytes that are missing of the first line of the next message.
  size_t ToHead() const {
    const uint64_t here = arrived_ - shown_;
    return here < kLineBytes ? kLineBytes - here : 0;
  }
  // Shows the reader each message that is complete. False for a message that makes no sense.
  bool Show();
  // The ring goes on at its start. False unless all messages before are complete, and there is
  // room.
  bool Pad(uint64_t consumed);

  uint32_t count() const { return count_; }
  // Messages that were shown so far.
  uint64_t messages() const { return messages_; }
  // Bytes of the lines of the last one of them.
  uint32_t last_bytes() const { return last_lines_ * uint32_t{kLineBytes}; }

 private:
  size_t Offset(uint64_t byte) const { return byte & (size_t{count_} * kLineBytes - 1); }
  RingLine& LineAt(uint64_t byte) { return lines_[Offset(byte) / kLineBytes]; }
  // Lines that may lie between what the reader has consumed and `position`: one is for the 0 behind
  // the last message.
  bool HasRoom(uint64_t position, uint64_t consumed) const { return position - consumed < count_; }

  RingLine* lines_;
  uint32_t count_;
  // In bytes since the ring's creation.
  uint64_t shown_ = 0;    // where the next message to show starts
  uint64_t arrived_ = 0;  // up to here bytes have arrived
  uint64_t end_ = 0;      // and up to here they are announced
  uint64_t messages_ = 0;
  uint32_t last_lines_ = 0;
  // The bytes of the control word at shown_ that have arrived, while it is kept back.
  uint64_t kept_back_ = 0;
  bool keeping_ = false;
};

// LentPayloads: the payloads of a ring's messages that a LanePair sends straight from the memory
// that they lie in, instead of copying them into the ring.
//
// A writer that publishes a large message leaves its payload where it is, and lends it to the
// LanePair. The LanePair sends at once, and then settles: it copies what the socket did not take
// into the ring, and ends all loans. The writer lends, and the LanePair settles, before their CQ's
// lock is released. So a loan is as safe as the copy that it replaces: whoever withdraws the memory
// waits for the lock.
//
// Owned by a LanePair, one for each ring that it sends, under the CQ's lock. At most kMax parts are
// lent: the writer has the LanePair send before it lends more.
class LentPayloads {
 public:
  // Below this a copy costs less than a part of its own in sendmsg. (start)
  static constexpr uint32_t kLeastBytes = 2048;
  // The most parts of payloads that are lent at once.
  static constexpr size_t kMax = 32;
  // The most parts that Describe makes.
  static constexpr size_t kMaxParts = 2 * kMax + 1;

  LentPayloads(RingLine* lines, uint32_t count) : lines_(lines), count_(count) {}

  bool empty() const { return count_lent_ == 0; }
  bool full() const { return count_lent_ == kMax; }

  // Payload bytes [offset, offset + bytes) of the message at `position` are at `from`. Parts are
  // lent in the order of the ring. Precondition: not full().
  void Add(uint64_t position, uint32_t offset, const void* from, uint32_t bytes);

  // Fills in `parts` with the bytes [from, to) of the ring, which do not cross its end: those that
  // are lent at their memory, the others in the ring. Returns how many parts that took.
  size_t Describe(uint64_t from, uint64_t to, std::span<iovec> parts) const;

  // Returns the line up to which a chunk that begins at line `from` takes lines: `to`, unless that
  // is in the middle of a message that is lent. Then it is this message's first line, with which
  // the next chunk begins, if that is above `from`.
  uint64_t WholeMessages(uint64_t from, uint64_t to) const;

  // How many lent bytes were sent from their memory, and how many were copied into the ring.
  struct Settlement {
    uint64_t sent = 0;
    uint64_t copied = 0;
    bool lost = false;  // some of them could not be read
  };
  // Copies what is lent from byte `unsent` of the ring on into the ring, and ends all loans.
  Settlement Settle(uint64_t unsent);

 private:
  struct Loan {
    uint64_t message;  // its position
    uint64_t at;       // in bytes since the ring's creation
    const std::byte* from;
    uint32_t bytes;
  };

  std::byte* ByteAt(uint64_t at) const {
    return reinterpret_cast<std::byte*>(lines_) + (at & (size_t{count_} * kLineBytes - 1));
  }

  RingLine* lines_;
  uint32_t count_;
  size_t count_lent_ = 0;
  std::array<Loan, kMax> loans_;
};

// One fragment's record: bytes [from, from + bytes) of its payload are in place.
struct PlacedBytes {
  uint32_t from = 0;
  uint32_t bytes = 0;
  // The place was not allowed any more when the rest came: the fragment is to be refused.
  bool withdrawn = false;

  uint32_t end() const { return from + bytes; }
};

// PlacedFragments: a record of payload bytes that a LanePair has received straight at their place,
// so that they are not in its ring.
//
// The LanePair adds fragments in the order of the ring. Responder and SendQueue, which execute
// them, take each one's record out, and copy only the bytes that it lacks. At most kMax fragments
// are recorded: further ones wait, or go through the ring. Owned by a LanePair, one for each ring
// that it receives, under the CQ's lock.
class PlacedFragments {
 public:
  // The most fragments that are in place, and not taken yet.
  static constexpr size_t kMax = 16;

  // The record of the fragment at line `position`, which is arriving. Null if none of it is in
  // place.
  PlacedBytes* Find(uint64_t position) {
    if (head_ == tail_ || At(tail_ - 1).position != position) return nullptr;
    return &At(tail_ - 1).placed;
  }
  bool full() const { return tail_ - head_ == kMax; }
  // `bytes` more of the fragment at `position` are in place, from byte `from` of its payload on.
  // Precondition: they follow those that are, or full() is false.
  void Add(uint64_t position, uint32_t from, uint32_t bytes) {
    if (PlacedBytes* placed = Find(position); placed != nullptr) {
      placed->bytes += bytes;
      return;
    }
    VERBENA_CHECK(!full()) << "position " << position;
    At(tail_++) = {.position = position, .placed = {.from = from, .bytes = bytes}};
  }

  // Removes the record of the fragment at `position`, and those of all before it, and returns it.
  // Returns no bytes if none of the fragment was in place.
  PlacedBytes Take(uint64_t position) {
    while (head_ != tail_ && At(head_).position < position) ++head_;
    if (head_ == tail_ || At(head_).position != position) return {};
    return At(head_++).placed;
  }

 private:
  struct Fragment {
    uint64_t position = 0;
    PlacedBytes placed;
  };
  Fragment& At(size_t index) { return fragments_[index % kMax]; }

  std::array<Fragment, kMax> fragments_;
  size_t head_ = 0;
  size_t tail_ = 0;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_RING_H_
