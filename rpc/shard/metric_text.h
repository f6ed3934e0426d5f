// MetricText: writes metrics in the formats that Prometheus scrapes.
//
// Knows the formats, and nothing of what is counted. A local of whoever writes; one thread.
//
//   MetricText text(MetricsFormat::kPrometheus);
//   text.Begin("store_scrubs_total", MetricKind::kCounter, "Scrubs begun.");
//   text.Sample("", LabelText({{"disk", "a"}}), 3);
//   return std::move(text).Take();

#ifndef VERBENA_RPC_SHARD_METRIC_TEXT_H_
#define VERBENA_RPC_SHARD_METRIC_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "verbena/rpc/metrics.h"

namespace verbena::internal {

enum class MetricKind : uint8_t { kCounter, kGauge, kHistogram };
const char* NameOf(MetricKind kind);

// `disk="a",pool="send"`: each value escaped.
std::string LabelText(const MetricLabels& labels);
// A number as both formats write it.
std::string NumberText(double value);
// A bound of a histogram, the same in both formats: OpenMetrics wants "1.0" for 1.
std::string BoundText(double bound);

class MetricText {
 public:
  explicit MetricText(MetricsFormat format) : format_(format) {}

  // The samples that follow are of this metric. A counter's name ends in "_total". The name lives
  // until the next Begin().
  void Begin(std::string_view name, MetricKind kind, std::string_view help);
  // `suffix` follows the name: "_sum". `labels` as LabelText() gives them.
  void Sample(std::string_view suffix, std::string_view labels, uint64_t value);
  void Sample(std::string_view suffix, std::string_view labels, double value);
  // The text is complete.
  std::string Take() &&;

 private:
  void AppendHead(std::string_view suffix, std::string_view labels);

  const MetricsFormat format_;
  std::string_view name_;
  std::string text_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_METRIC_TEXT_H_
