// Comparison: the figures that answer one question about verbs' parameters, as a few curves over
// one axis.

#ifndef VERBENA_BENCHMARKS_PARAMETERS_COMPARISON_H_
#define VERBENA_BENCHMARKS_PARAMETERS_COMPARISON_H_

#include <cstddef>
#include <string>
#include <vector>

namespace verbena::benchmarks {

struct Curve {
  std::string name;
  std::vector<double> y;  // one for each x; 0: this device does not support x
};

struct Comparison {
  std::string name;   // "inline": names it in files and JSON
  std::string title;  // "Inline against not: 32-byte SEND"
  std::string x_title;
  std::string y_title;
  std::vector<double> x;
  std::vector<Curve> curves;
};

// The largest x up to which, at each x in turn, `curve` is no higher than the lowest of `others`; 0
// if it is higher at the first one. All by index in `curves`. A device that does not support
// `curve` at an x ends the search; points that it lacks of the others are left out.
double LowestUpTo(const Comparison& comparison, size_t curve, const std::vector<size_t>& others);

// A table for people, with its title.
std::string ToTable(const Comparison& comparison);

// One JSON object a line and point: bench, device, comparison, curve, x, y.
std::string ToJsonLines(const Comparison& comparison, const std::string& device);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_PARAMETERS_COMPARISON_H_
