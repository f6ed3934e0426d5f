// PostedSlices: the slices of transfers that are in a link's send queue, oldest first, and how many
// READs and bytes they have outstanding.
//
// A send queue completes in order, so slices end in the order in which they were posted. Positions
// in the send queue and the number of slices that have ended wrap around. Part of a link's
// TransferQueue; one thread.
//
//   slices.Add({.end = position + 1, .reads = 0, .bytes = bytes, .transfer = &transfer});
//   while (slices.HasEnded(completed)) Finish(slices.Take());

#ifndef VERBENA_TRANSPORT_LINK_POSTED_SLICES_H_
#define VERBENA_TRANSPORT_LINK_POSTED_SLICES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "verbena/transport/base/check.h"
#include "verbena/transport/link/transfer.h"

namespace verbena::internal {

// A chain of WRs that is in the send queue.
struct PostedSlice {
  uint32_t end = 0;    // the position behind its last WR
  uint32_t reads = 0;  // of its WRs; an atomic operation is one
  uint32_t bytes = 0;
  Transfer* transfer = nullptr;
  bool last = false;         // of the transfer
  uint64_t* word = nullptr;  // of an atomic operation
};

class PostedSlices {
 public:
  // At most `capacity` slices at a time.
  explicit PostedSlices(uint32_t capacity);

  bool empty() const { return head_ == tail_; }
  uint32_t count() const { return tail_ - head_; }
  // Slices that were taken so far.
  uint32_t taken() const { return head_; }
  uint32_t reads() const { return reads_; }
  uint32_t bytes() const { return bytes_; }

  void Add(const PostedSlice& slice) {
    VERBENA_CHECK(count() < slices_.size()) << "slices " << count();
    slices_[Index(tail_++)] = slice;
    reads_ += slice.reads;
    bytes_ += slice.bytes;
  }
  // The slice of `transfer` that was added last; nullptr if there is none. Looks at all slices.
  PostedSlice* FindLast(const Transfer& transfer);

  // Whether the oldest slice has ended, when every WR before send queue position `completed` has.
  // False if there is none.
  bool HasEnded(uint32_t completed) const {
    return !empty() && static_cast<int32_t>(completed - slices_[Index(head_)].end) >= 0;
  }
  // Takes the oldest. Precondition: not empty().
  PostedSlice Take() {
    const PostedSlice slice = slices_[Index(head_++)];
    reads_ -= slice.reads;
    bytes_ -= slice.bytes;
    return slice;
  }

 private:
  size_t Index(uint32_t number) const { return number & (slices_.size() - 1); }

  std::vector<PostedSlice> slices_;  // a ring; the size is a power of two
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
  uint32_t reads_ = 0;
  uint32_t bytes_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_POSTED_SLICES_H_
