// Median: the middle value of a run's slices. One disturbed slice does not move it.

#ifndef VERBENA_BENCHMARKS_HARNESS_MEDIAN_H_
#define VERBENA_BENCHMARKS_HARNESS_MEDIAN_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace verbena::benchmarks {

// The mean of the two middle values if their number is even; 0 if there are none.
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const std::size_t middle = values.size() / 2;
  std::sort(values.begin(), values.end());
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_HARNESS_MEDIAN_H_
