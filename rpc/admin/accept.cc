#include "verbena/rpc/admin/accept.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace verbena::internal {

namespace {

// One of the types that a header accepts: "text/plain; version=0.0.4; q=0.5".
struct AcceptedType {
  std::string name = {};
  std::string version = {};
  double weight = 1;
};

// Nothing if its weight is no number from 0 to 1.
std::optional<AcceptedType> ParseType(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ';');
  AcceptedType type{.name = absl::AsciiStrToLower(absl::StripAsciiWhitespace(parts[0]))};
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::vector<std::string> pair = absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    if (pair.size() != 2) continue;
    const std::string key = absl::AsciiStrToLower(absl::StripAsciiWhitespace(pair[0]));
    const std::string value(absl::StripAsciiWhitespace(pair[1]));
    if (key == "version") type.version = value;
    if (key != "q") continue;
    if (!absl::SimpleAtod(value, &type.weight)) return std::nullopt;
    if (!(type.weight >= 0 && type.weight <= 1)) return std::nullopt;
  }
  return type;
}

// The most exact of the types that match decides: "text/plain" goes before "*/*".
double PlainWeight(const std::vector<AcceptedType>& types) {
  for (const std::string_view name : {"text/plain", "text/*", "*/*"}) {
    std::optional<double> weight;
    for (const AcceptedType& type : types) {
      if (type.name == name) weight = std::max(weight.value_or(0), type.weight);
    }
    if (weight.has_value()) return *weight;
  }
  return 0;
}

}  // namespace

MetricsFormat AcceptedFormat(std::string_view accept) {
  std::vector<AcceptedType> types;
  for (const std::string& text :
       std::vector<std::string>(absl::StrSplit(std::string(accept), ','))) {
    if (std::optional<AcceptedType> type = ParseType(text)) types.push_back(*std::move(type));
  }
  double open = 0;
  for (const AcceptedType& type : types) {
    const bool is_ours = type.version.empty() || type.version == "1.0.0";
    if (type.name == "application/openmetrics-text" && is_ours) open = std::max(open, type.weight);
  }
  return open > 0 && open >= PlainWeight(types) ? MetricsFormat::kOpenMetrics
                                                : MetricsFormat::kPrometheus;
}

std::string_view ContentTypeOf(MetricsFormat format) {
  return format == MetricsFormat::kOpenMetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

}  // namespace verbena::internal
