// CheckKey: whether the history of one key is linearizable: there is an order of its operations, in
// which each lies between its start and its end, and each Get sees what the writes before it left.
// CountLosses: acknowledged writes that are gone, and writes that took effect twice.
//
// The search is that of Wing and Gong, with Lowe's memory of what was tried: the set of operations
// that are placed, and the value that they leave. It takes exponential time at worst, so it stops
// at a bound of memory. Keys do not depend on each other, so a history is linearizable if each of
// its keys is. Pure functions.
//
//   if (CheckKey(operations) == Verdict::kNo) …

#ifndef VERBENA_EXAMPLES_ROLLING_CHECKER_H_
#define VERBENA_EXAMPLES_ROLLING_CHECKER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "examples/rolling/history.h"

namespace rolling {

enum class Verdict { kYes, kNo, kUndecided };

// kUndecided: the memory of the search would take more than `max_bytes`.
Verdict CheckKey(const std::vector<Operation>& operations, size_t max_bytes = size_t{256} << 20);

struct Losses {
  uint64_t lost = 0;
  uint64_t duplicated = 0;
};

// The losses of one key, whose value is `final` when nobody writes any more. Each written value is
// unique, and ends with '.', which it has nowhere else. A key is written by Put alone or by Append
// alone.
Losses CountLosses(const std::vector<Operation>& operations,
                   const std::optional<std::string>& final);

}  // namespace rolling

#endif  // VERBENA_EXAMPLES_ROLLING_CHECKER_H_
