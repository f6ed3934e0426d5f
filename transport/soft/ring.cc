#include "verbena/transport/soft/ring.h"

#include <algorithm>
#include <cstring>

#include "verbena/transport/base/check.h"
#include "verbena/transport/soft/user_memory.h"

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

void LentPayloads::Add(uint64_t position, uint32_t offset, const void* from, uint32_t bytes) {
  VERBENA_CHECK(!full()) << "position " << position;
  loans_[count_lent_++] = {.message = position,
                           .at = position * kLineBytes + kHeaderBytes + offset,
                           .from = static_cast<const std::byte*>(from),
                           .bytes = bytes};
}

size_t LentPayloads::Describe(uint64_t from, uint64_t to, std::span<iovec> parts) const {
  size_t count = 0;
  const auto add = [&](const std::byte* start, uint64_t bytes) {
    if (bytes != 0) parts[count++] = {.iov_base = const_cast<std::byte*>(start), .iov_len = bytes};
  };
  for (size_t i = 0; i < count_lent_ && from != to; ++i) {
    const Loan& loan = loans_[i];
    if (loan.at >= to) break;
    if (loan.at + loan.bytes <= from) continue;
    if (loan.at > from) {
      add(ByteAt(from), loan.at - from);
      from = loan.at;
    }
    const uint64_t end = std::min(loan.at + loan.bytes, to);
    add(loan.from + (from - loan.at), end - from);
    from = end;
  }
  add(ByteAt(from), to - from);
  return count;
}

uint64_t LentPayloads::WholeMessages(uint64_t from, uint64_t to) const {
  for (const Loan& loan : std::span(loans_).first(count_lent_)) {
    if (loan.at + loan.bytes <= to * kLineBytes) continue;
    return loan.message > from && loan.message < to ? loan.message : to;
  }
  return to;
}

LentPayloads::Settlement LentPayloads::Settle(uint64_t unsent) {
  Settlement settlement;
  for (const Loan& loan : std::span(loans_).first(count_lent_)) {
    const uint64_t sent = loan.at >= unsent ? 0 : std::min<uint64_t>(unsent - loan.at, loan.bytes);
    const uint64_t left = loan.bytes - sent;
    settlement.lost |= !CopyUserMemory(ByteAt(loan.at + sent), loan.from + sent, left);
    settlement.sent += sent;
    settlement.copied += left;
  }
  count_lent_ = 0;
  return settlement;
}

}  // namespace verbena::internal::soft
