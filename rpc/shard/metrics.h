// MetricsCore: what stands behind a Metrics (metrics.h): the program's metrics, and the ways to
// what the runtime's executors count.
//
// Owned by the RuntimeCore's Metrics. Any thread; a mutex guards the program's metrics, and is held
// while they are written. Bounded by Metrics::kMaxSeries.

#ifndef VERBENA_RPC_SHARD_METRICS_H_
#define VERBENA_RPC_SHARD_METRICS_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/metrics.h"
#include "verbena/rpc/shard/call_counts.h"
#include "verbena/rpc/shard/call_report.h"
#include "verbena/rpc/shard/metric_text.h"
#include "verbena/rpc/shard/report.h"

namespace verbena::internal {

class RuntimeCore;

class MetricsCore {
 public:
  // Part of `runtime`, which has started.
  explicit MetricsCore(RuntimeCore& runtime);
  MetricsCore(const MetricsCore&) = delete;
  MetricsCore& operator=(const MetricsCore&) = delete;
  // That of the runtime.
  static MetricsCore& Of(const Runtime& runtime);

  // As those of Metrics.
  absl::StatusOr<MetricCounter*> AddCounter(std::string_view name, std::string_view help,
                                            MetricLabels labels);
  absl::StatusOr<MetricGauge*> AddGauge(std::string_view name, std::string_view help,
                                        MetricLabels labels);
  absl::StatusOr<MetricHistogram*> AddHistogram(std::string_view name, std::string_view help,
                                                std::vector<double> bounds, MetricLabels labels);
  std::string Text(MetricsFormat format) const;
  // The same with these reports.
  std::string Text(MetricsFormat format, const RuntimeReport& report) const;
  // As MethodReportsOf().
  std::vector<MethodReport> Methods() const;

 private:
  using Value = std::variant<std::unique_ptr<MetricCounter>, std::unique_ptr<MetricGauge>,
                             std::unique_ptr<MetricHistogram>>;
  struct Family {
    MetricKind kind;
    std::string help;
    std::vector<double> bounds;            // of a histogram
    std::vector<std::string> label_names;  // sorted
    std::map<std::string, Value> series;   // by LabelText(), of labels in that order
  };

  // The place of a series whose name and labels are in order, and free. Sorts `labels`.
  absl::StatusOr<Value*> Place(std::string_view name, MetricKind kind, std::string_view help,
                               MetricLabels& labels, const std::vector<double>& bounds);
  void WriteCalls(MetricText& text) const;
  void WriteRefusals(MetricText& text) const;
  void WriteProgram(MetricText& text) const;

  const RuntimeCore& runtime_;
  mutable RuntimeReporter reporter_;
  mutable std::mutex mutex_;  // of what follows
  std::map<std::string, Family, std::less<>> families_;
  // All names that the samples and families of families_ have, with their family.
  std::map<std::string, std::string, std::less<>> taken_;
  size_t series_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SHARD_METRICS_H_
