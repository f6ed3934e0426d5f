#include "verbena/benchmarks/parameters/comparison.h"

#include <fmt/format.h>

namespace verbena::benchmarks {
namespace {

std::string Number(double value) {
  if (value >= 100) return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value);
}

}  // namespace

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
