#include "verbena/transport/link/posted_slices.h"

#include <bit>

namespace verbena::internal {

PostedSlices::PostedSlices(uint32_t capacity) : slices_(std::bit_ceil(capacity)) {}

PostedSlice* PostedSlices::FindLast(const Transfer& transfer) {
  for (uint32_t number = tail_; number != head_; --number) {
    PostedSlice& slice = slices_[Index(number - 1)];
    if (slice.transfer == &transfer) return &slice;
  }
  return nullptr;
}

}  // namespace verbena::internal
