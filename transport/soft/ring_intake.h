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

#ifndef VERBENA_TRANSPORT_SOFT_RING_INTAKE_H_
#define VERBENA_TRANSPORT_SOFT_RING_INTAKE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "verbena/transport/soft/message.h"
#include "verbena/transport/soft/ring.h"

namespace verbena::internal::soft {

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

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_RING_INTAKE_H_
