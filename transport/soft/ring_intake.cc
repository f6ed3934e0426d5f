#include "verbena/transport/soft/ring_intake.h"

#include <algorithm>

#include "verbena/transport/soft/message.h"

namespace verbena::internal::soft {
namespace {

// Not kPlaced: nobody behind a TCP wire puts data in place by itself.
constexpr uint8_t kKnownFlags = kFirst | kLast | kImmediate | kSolicited | kWatched;

// The lines of the message that `control` begins; 0 if it can begin none.
uint32_t LinesOfControl(uint64_t control) {
  const MessageHeader header = MessageHeader::Decode(control, 0);
  const auto opcode = static_cast<uint8_t>(header.opcode);
  if (opcode <= static_cast<uint8_t>(Opcode::kPad) || opcode > kLastOpcode) return 0;
  if (header.length > kMaxFragmentBytes || (header.flags & ~unsigned{kKnownFlags}) != 0) return 0;
  return LinesOf(header.length);
}

}  // namespace

bool RingIntake::Begin(uint32_t lines, uint64_t consumed) {
  const uint64_t position = arrived_ / kLineBytes;
  const uint32_t to_end = count_ - static_cast<uint32_t>(position & (count_ - 1));
  if (lines > to_end) return false;
  if (!HasRoom(position + lines, consumed)) return false;
  end_ = arrived_ + uint64_t{lines} * kLineBytes;
  return true;
}

bool RingIntake::Show() {
  while (true) {
    RingLine& line = LineAt(shown_);
    const uint64_t have = std::min<uint64_t>(arrived_ - shown_, sizeof(uint64_t));
    uint64_t control = 0;
    if (have != 0) {
      control = line.control.load(std::memory_order_relaxed);
      // A word that was kept back is 0 in the ring. Otherwise the bytes that are missing are old
      // ones.
      if (keeping_) {
        control |= kept_back_;
      } else if (have < sizeof(uint64_t)) {
        control &= (uint64_t{1} << 8 * have) - 1;
      }
    }
    uint32_t lines = 0;
    if (have == sizeof(uint64_t)) {
      lines = LinesOfControl(control);
      const uint64_t position = shown_ / kLineBytes;
      if (lines == 0 || lines > count_ - static_cast<uint32_t>(position & (count_ - 1))) {
        // The reader gets what is before it.
        line.control.store(0, std::memory_order_relaxed);
        return false;
      }
    }
    if (lines == 0 || arrived_ - shown_ < uint64_t{lines} * kLineBytes) {
      keeping_ = have != 0;
      kept_back_ = control;
      line.control.store(0, std::memory_order_relaxed);
      return true;
    }
    line.control.store(control, std::memory_order_release);
    keeping_ = false;
    shown_ += uint64_t{lines} * kLineBytes;
    ++messages_;
    last_lines_ = lines;
  }
}

bool RingIntake::FindIncomplete(Incomplete& message) {
  if (!keeping_ || arrived_ - shown_ < kLineBytes) return false;
  const RingLine& line = LineAt(shown_);
  message.position = shown_ / kLineBytes;
  message.header = MessageHeader::Decode(kept_back_, line.route);
  message.payload = line.payload;
  const uint64_t here = arrived_ - shown_ - kHeaderBytes;
  message.arrived = static_cast<uint32_t>(std::min<uint64_t>(here, message.header.length));
  message.missing = uint64_t{LinesOf(message.header.length)} * kLineBytes - (arrived_ - shown_);
  return true;
}

bool RingIntake::Pad(uint64_t consumed) {
  const uint64_t position = arrived_ / kLineBytes;
  const uint32_t index = static_cast<uint32_t>(position & (count_ - 1));
  if (arrived_ != end_ || shown_ != arrived_ || index == 0) return false;
  const uint64_t start = position + count_ - index;
  if (!HasRoom(start, consumed)) return false;
  lines_[0].control.store(0, std::memory_order_relaxed);
  lines_[index].control.store(MessageHeader{.opcode = Opcode::kPad}.Control(),
                              std::memory_order_release);
  arrived_ = end_ = shown_ = start * kLineBytes;
  return true;
}

}  // namespace verbena::internal::soft
