// Places: the memory where payloads that arrive over a TCP connection belong, so that the LanePair
// receives them there, and not in a ring.
//
// A message has a place once it is certain that it will be executed as soon as it is complete. Its
// first line has arrived, every earlier message of its ring is consumed or is a fragment of the
// same WRITE or READ, and the checks that its execution makes hold by now. A place is good for
// bytes that are received before the CQ's lock is released. Whoever withdraws the memory or the
// queue pair waits for the lock, so nothing is written there afterwards. For the next bytes the
// place is looked up again.
//
// Owned by a LanePair, under the CQ's lock. It remembers four cursors, however many operations are
// under way: those of the newest WRITE and READ that had a place.

#ifndef VERBENA_TRANSPORT_SOFT_PLACES_H_
#define VERBENA_TRANSPORT_SOFT_PLACES_H_

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "verbena/transport/soft/lane.h"
#include "verbena/transport/soft/responder.h"
#include "verbena/transport/soft/ring_intake.h"

namespace verbena::internal::soft {

class CompletionQueue;

// Memory for the next bytes of one message.
struct Place {
  static constexpr size_t kMaxParts = 4;

  std::array<iovec, kMaxParts> parts{};
  size_t count = 0;
  uint32_t bytes = 0;  // of all parts. 0: no place; the bytes go into the ring
  bool later = false;  // no place before earlier messages of the ring are consumed
};

class Places {
 public:
  // Less than this is not worth a look: it goes through the ring. (start)
  static constexpr uint32_t kLeastBytes = 2048;

  // Returns the place of the first bytes that `message`, message `number` of its ring, still lacks:
  // of `most` bytes or fewer.
  Place OfRequest(InLane& lane, CompletionQueue& cq, const RingIntake::Incomplete& message,
                  uint64_t number, uint32_t most);
  Place OfAnswer(OutLane& lane, const RingIntake::Incomplete& message, uint64_t number,
                 uint32_t most);

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};

  // How far the WRITE or READ will be before message `number`, if all before it are executed.
  struct WriteAhead {
    uint64_t number = kNone;
    uint32_t qpn = 0;
    Responder::WriteCursor cursor;
  };
  struct ReadAhead {
    uint64_t number = kNone;
    uint32_t qpn = 0;
    uint16_t psn = 0;
    uint32_t offset = 0;
  };

  // The cursors at the message that has a place, and at the one behind it.
  WriteAhead write_;
  WriteAhead next_write_;
  ReadAhead read_;
  ReadAhead next_read_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_PLACES_H_
