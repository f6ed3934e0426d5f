#include "verbena/benchmarks/parameters/comparison.h"

#include <fmt/format.h>

#include <algorithm>

namespace verbena::benchmarks {
namespace {

std::string Number(double value) {
  if (value >= 100) return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value);
}

}  // namespace

double LowestUpTo(const Comparison& comparison, size_t curve, const std::vector<size_t>& others) {
  double last = 0;
  for (size_t i = 0; i < comparison.x.size(); ++i) {
    const double mine = comparison.curves[curve].y[i];
    const bool is_lowest = std::all_of(others.begin(), others.end(), [&](size_t other) {
      const double theirs = comparison.curves[other].y[i];
      return theirs == 0 || mine <= theirs;
    });
    if (mine == 0 || !is_lowest) break;
    last = comparison.x[i];
  }
  return last;
}

std::string ToTable(const Comparison& comparison) {
  size_t width = comparison.x_title.size();
  std::string out =
      fmt::format("{} [{}]\n  {}", comparison.title, comparison.y_title, comparison.x_title);
  for (const Curve& curve : comparison.curves) out += fmt::format("  {:>12}", curve.name);
  for (size_t i = 0; i < comparison.x.size(); ++i) {
    out += fmt::format("\n  {:>{}g}", comparison.x[i], width);
    for (const Curve& curve : comparison.curves) {
      out += fmt::format("  {:>12}", curve.y[i] == 0 ? "-" : Number(curve.y[i]));
    }
  }
  return out + "\n";
}

std::string ToJsonLines(const Comparison& comparison, const std::string& device) {
  std::string out;
  for (const Curve& curve : comparison.curves) {
    for (size_t i = 0; i < curve.y.size(); ++i) {
      out += fmt::format(
          R"({{"bench":"parameters","device":"{}","comparison":"{}","curve":"{}","x":{:g},"y":{}}})"
          "\n",
          device, comparison.name, curve.name, comparison.x[i],
          curve.y[i] == 0 ? "null" : fmt::format("{:.6g}", curve.y[i]));
    }
  }
  return out;
}

}  // namespace verbena::benchmarks
