// BulkBudget: how much of payloads the links of one endpoint post in one turn of its executor.
//
// Payloads leave in slices. If the processor copies them as they are posted, all links together
// post few bytes in one turn, so that calls do not wait for these copies. A link that is told to
// wait tries again in the next turn, ahead of the links that had a slice in this one. One thread.

#ifndef VERBENA_TRANSPORT_LINK_BULK_BUDGET_H_
#define VERBENA_TRANSPORT_LINK_BULK_BUDGET_H_

#include <cstdint>

namespace verbena::internal {

class BulkBudget {
 public:
  // In one turn, slices may be posted until `bytes_per_turn` is reached; UINT32_MAX: no bound.
  explicit BulkBudget(uint32_t bytes_per_turn) : bytes_per_turn_(bytes_per_turn) {}

  // `turn` is the executor's count of turns.
  bool MayPost(uint64_t turn) const { return turn != turn_ || bytes_ < bytes_per_turn_; }
  void Count(uint64_t turn, uint32_t bytes) {
    bytes_ = turn == turn_ ? bytes_ + bytes : bytes;
    turn_ = turn;
  }

 private:
  const uint32_t bytes_per_turn_;
  uint64_t turn_ = 0;   // the last in which a slice was posted
  uint64_t bytes_ = 0;  // posted in that turn
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_BULK_BUDGET_H_
