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

#ifndef VERBENA_TRANSPORT_SOFT_RING_H_
#define VERBENA_TRANSPORT_SOFT_RING_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "verbena/transport/base/check.h"
#include "verbena/transport/soft/message.h"

namespace verbena::internal::soft {

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

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_RING_H_
