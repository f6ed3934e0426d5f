// SequenceSet: a set of numbers that mostly follow each other, as ranges.
//
// Bounded: if it would need more than kMaxRanges, the numbers between its two lowest ranges join
// it, so that it may hold more than was added, never less. A value; one thread.

#ifndef VERBENA_RPC_SERVER_SEQUENCE_SET_H_
#define VERBENA_RPC_SERVER_SEQUENCE_SET_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::internal {

class SequenceSet {
 public:
  static constexpr size_t kMaxRanges = 64;

  bool Contains(uint64_t number) const {
    const auto next = FirstBehind(number);
    return next != ranges_.begin() && number < (next - 1)->end;
  }

  // Precondition: number + 1 does not wrap around.
  void Add(uint64_t number) {
    if (Contains(number)) return;
    auto next = ranges_.begin() + (FirstBehind(number) - ranges_.begin());
    const bool joins_before = next != ranges_.begin() && (next - 1)->end == number;
    const bool joins_next = next != ranges_.end() && next->begin == number + 1;
    if (joins_before && joins_next) {
      (next - 1)->end = next->end;
      ranges_.erase(next);
    } else if (joins_before) {
      ++(next - 1)->end;
    } else if (joins_next) {
      --next->begin;
    } else {
      ranges_.insert(next, {number, number + 1});
      if (ranges_.size() > kMaxRanges) JoinLowest();
    }
  }

  // Removes all numbers below `limit`.
  void RemoveBelow(uint64_t limit) {
    const auto kept = std::find_if(ranges_.begin(), ranges_.end(),
                                   [limit](const Range& range) { return range.end > limit; });
    ranges_.erase(ranges_.begin(), kept);
    if (!ranges_.empty()) ranges_.front().begin = std::max(ranges_.front().begin, limit);
  }

  size_t ranges() const { return ranges_.size(); }

 private:
  // Numbers from `begin` to before `end`.
  struct Range {
    uint64_t begin;
    uint64_t end;
  };

  // The first range that begins behind `number`.
  std::vector<Range>::const_iterator FirstBehind(uint64_t number) const {
    return std::upper_bound(ranges_.begin(), ranges_.end(), number,
                            [](uint64_t value, const Range& range) { return value < range.begin; });
  }
  void JoinLowest() {
    ranges_[1].begin = ranges_[0].begin;
    ranges_.erase(ranges_.begin());
  }

  std::vector<Range> ranges_;  // ascending; none touches the next
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_SEQUENCE_SET_H_
