// PlacedFragments: a record of payload bytes that a LanePair has received straight at their place,
// so that they are not in its ring.
//
// The LanePair adds fragments in the order of the ring. Responder and SendQueue, which execute
// them, take each one's record out, and copy only the bytes that it lacks. At most kMax fragments
// are recorded: further ones wait, or go through the ring. Owned by a LanePair, one for each ring
// that it receives, under the CQ's lock.

#ifndef VERBENA_TRANSPORT_SOFT_PLACED_FRAGMENTS_H_
#define VERBENA_TRANSPORT_SOFT_PLACED_FRAGMENTS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "verbena/transport/base/check.h"

namespace verbena::internal::soft {

// One fragment's record: bytes [from, from + bytes) of its payload are in place.
struct PlacedBytes {
  uint32_t from = 0;
  uint32_t bytes = 0;
  // The place was not allowed any more when the rest came: the fragment is to be refused.
  bool withdrawn = false;

  uint32_t end() const { return from + bytes; }
};

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

#endif  // VERBENA_TRANSPORT_SOFT_PLACED_FRAGMENTS_H_
