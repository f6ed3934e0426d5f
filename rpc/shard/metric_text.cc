#include "verbena/rpc/shard/metric_text.h"

#include <cmath>
#include <iterator>
#include <utility>

#include "fmt/format.h"

namespace verbena::internal {
namespace {

// `quotes`: those are escaped, too.
void AppendEscaped(std::string& text, std::string_view value, bool quotes) {
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '\\' || (quotes && c == '"')) text += '\\';
    text += c;
  }
}

constexpr std::string_view kTotal = "_total";

}  // namespace

const char* NameOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kHistogram:
      break;
  }
  return "histogram";
}

std::string LabelText(const MetricLabels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    if (!text.empty()) text += ',';
    text += name;
    text += "=\"";
    AppendEscaped(text, value, /*quotes=*/true);
    text += '"';
  }
  return text;
}

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string BoundText(double bound) {
  std::string text = NumberText(bound);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

void MetricText::Begin(std::string_view name, MetricKind kind, std::string_view help) {
  name_ = name;
  // In OpenMetrics the suffix belongs to a counter's sample, not to its name.
  const bool is_open = format_ == MetricsFormat::kOpenMetrics;
  const std::string_view family =
      is_open && kind == MetricKind::kCounter ? name.substr(0, name.size() - kTotal.size()) : name;
  fmt::format_to(std::back_inserter(text_), "# HELP {} ", family);
  AppendEscaped(text_, help, /*quotes=*/is_open);
  fmt::format_to(std::back_inserter(text_), "\n# TYPE {} {}\n", family, NameOf(kind));
}

void MetricText::AppendHead(std::string_view suffix, std::string_view labels) {
  text_ += name_;
  text_ += suffix;
  if (!labels.empty()) {
    text_ += '{';
    text_ += labels;
    text_ += '}';
  }
  text_ += ' ';
}

void MetricText::Sample(std::string_view suffix, std::string_view labels, uint64_t value) {
  AppendHead(suffix, labels);
  const fmt::format_int digits(value);
  text_.append(digits.data(), digits.size());
  text_ += '\n';
}

void MetricText::Sample(std::string_view suffix, std::string_view labels, double value) {
  AppendHead(suffix, labels);
  text_ += NumberText(value);
  text_ += '\n';
}

std::string MetricText::Take() && {
  if (format_ == MetricsFormat::kOpenMetrics) text_ += "# EOF\n";
  return std::move(text_);
}

}  // namespace verbena::internal
