#include "verbena/transport/link/lease_requests.h"

#include <algorithm>
#include <bit>

namespace verbena::internal {

LeaseRequests::LeaseRequests(uint32_t max_windows)
    : requests_(kMaxChain), ending_(std::bit_ceil(max_windows)) {
  bindings_.reserve(kMaxChain);
  invalidations_.reserve(max_windows);
}

uint32_t LeaseRequests::Prepare(uint32_t slots) {
  prepared_ = 0;
  for (const Binding& binding : bindings_) {
    ibv_send_wr& request = requests_[prepared_++];
    request.opcode = IBV_WR_BIND_MW;
    request.send_flags = 0;
    // Shares its place with the key of an invalidation, and rxe's provider refuses a binding with
    // one.
    request.imm_data = 0;
    request.bind_mw = {
        .mw = binding.window->mw.get(), .rkey = binding.window->rkey, .bind_info = binding.info};
  }
  prepared_bindings_ = prepared_;
  const uint32_t room = std::min(std::max(slots, prepared_), kMaxChain);
  for (size_t i = 0; i < invalidations_.size() && prepared_ < room; ++i) {
    ibv_send_wr& request = requests_[prepared_++];
    request.opcode = IBV_WR_LOCAL_INV;
    request.send_flags = 0;
    request.invalidate_rkey = invalidations_[i]->terms().rkey;
  }
  if (prepared_ == 0) return 0;
  for (uint32_t i = 0; i < prepared_; ++i) requests_[i].next = &requests_[i] + 1;
  requests_[prepared_ - 1].next = nullptr;
  if (prepared_ > prepared_bindings_) requests_[prepared_ - 1].send_flags = IBV_SEND_SIGNALED;
  return prepared_;
}

bool LeaseRequests::Placed(uint32_t last_position) {
  const uint32_t count = prepared_ - prepared_bindings_;
  for (uint32_t i = 0; i < count; ++i) {
    ending_[Index(tail_++)] = {last_position + 1, invalidations_[i]};
  }
  invalidations_.erase(invalidations_.begin(), invalidations_.begin() + count);
  return count > 0;
}

void LeaseRequests::Posted() {
  // The provider reads from the window which key the WR replaced, so it changes only now.
  for (uint32_t i = 0; i < prepared_bindings_; ++i) {
    MemoryWindow& window = *bindings_[i].window;
    window.mw->rkey = window.rkey;
  }
  bindings_.erase(bindings_.begin(), bindings_.begin() + prepared_bindings_);
  prepared_bindings_ = 0;
}

void LeaseRequests::Clear() {
  bindings_.clear();
  prepared_bindings_ = 0;
  invalidations_.clear();
  head_ = tail_;
}

}  // namespace verbena::internal
