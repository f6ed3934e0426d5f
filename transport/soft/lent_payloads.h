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

#ifndef VERBENA_TRANSPORT_SOFT_LENT_PAYLOADS_H_
#define VERBENA_TRANSPORT_SOFT_LENT_PAYLOADS_H_

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "verbena/transport/soft/ring.h"

namespace verbena::internal::soft {

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

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_LENT_PAYLOADS_H_
