// Metrics: what a runtime counts, and what its program adds, as text that Prometheus scrapes.
//
//   Metrics                    all metrics of one Runtime: Runtime::metrics()
//   MetricCounter              a number of the program's that only grows
//   MetricGauge                one that goes up and down
//   MetricHistogram            how often its values lay below each of some bounds
//   MetricLabels               names and values that tell the series of one metric apart
//   MetricsFormat              the two formats of the text
//
// Verbena's own metrics have OpenTelemetry's names where it has some
// (rpc_server_call_duration_seconds), and begin with "verbena_" otherwise; docs/metrics.md lists
// them. Their labels are methods, codes, devices, pools and executors, never peers. Of a process's
// methods 1,023 have series of their own; the others, and methods that a server does not know,
// share those of "_OTHER". With RuntimeOptions::metrics unset no call is counted, and the rest is
// there.
//
//   VERBENA_ASSIGN_OR_RETURN(MetricCounter * scrubs,
//                            runtime->metrics().AddCounter("store_scrubs_total", "Scrubs begun."));
//   scrubs->Add();
//   std::string text = runtime->metrics().Text(MetricsFormat::kPrometheus);

#ifndef VERBENA_RPC_METRICS_H_
#define VERBENA_RPC_METRICS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/base/export.h"

namespace verbena {

namespace internal {
class MetricsCore;
class MetricsPart;
}  // namespace internal

enum class MetricsFormat {
  kPrometheus,   // text/plain; version=0.0.4
  kOpenMetrics,  // application/openmetrics-text; version=1.0.0
};

// Names and values, in any order. A name has letters, digits and '_', does not begin with a digit
// or with "__", and is not "le". A value is any UTF-8.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// A number that only grows. Of a Metrics, which outlives its use; any thread.
class MetricCounter {
 public:
  void Add(uint64_t more = 1) { value_.fetch_add(more, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// A number that goes up and down. Of a Metrics, which outlives its use; any thread.
class MetricGauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  void Add(double more) { value_.fetch_add(more, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

// How many of its values were at most each of some bounds, and their sum. Of a Metrics, which
// outlives its use; any thread.
class VERBENA_EXPORT MetricHistogram {
 public:
  static constexpr size_t kMaxBounds = 64;

  // For Metrics, which has checked the bounds: each is larger than the one before.
  explicit MetricHistogram(std::vector<double> bounds);
  MetricHistogram(const MetricHistogram&) = delete;
  MetricHistogram& operator=(const MetricHistogram&) = delete;

  void Observe(double value);

  const std::vector<double>& bounds() const { return bounds_; }
  // The values above bound `index` - 1, and at most bound `index`; after the last bound, the rest.
  uint64_t count(size_t index) const { return counts_[index].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  const std::vector<double> bounds_;
  const std::unique_ptr<std::atomic<uint64_t>[]> counts_;
  std::atomic<double> sum_{0};
};

// All metrics of one Runtime, which owns it. Any thread, an executor's too.
//
// A metric has one name, one kind and one text of help, and a series for each set of labels that
// was added with the name; all its series have the same label names. What Add…() returns lives as
// long as the runtime; so do its series, of which there are at most kMaxSeries.
//
//   INVALID_ARGUMENT: the name is none of Prometheus's ([a-zA-Z_:][a-zA-Z0-9_:]*), or ends as the
//     name of another kind does; a label is none, is given twice, or has no valid UTF-8; the label
//     names differ from those of the name's other series; bounds do not grow.
//   ALREADY_EXISTS: the name begins as Verbena's own do ("verbena_", "rpc_"), is that of another
//     kind of metric, or has this series already. One of a histogram also takes those of its parts
//     ("…_bucket", "…_sum", "…_count").
//   RESOURCE_EXHAUSTED: kMaxSeries are there.
class VERBENA_EXPORT Metrics {
 public:
  static constexpr size_t kMaxSeries = 4096;

  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;
  ~Metrics();

  // The name ends in "_total".
  absl::StatusOr<MetricCounter*> AddCounter(std::string_view name, std::string_view help,
                                            MetricLabels labels = {});
  absl::StatusOr<MetricGauge*> AddGauge(std::string_view name, std::string_view help,
                                        MetricLabels labels = {});
  // 1 to MetricHistogram::kMaxBounds finite bounds. All series of the name have the same ones.
  absl::StatusOr<MetricHistogram*> AddHistogram(std::string_view name, std::string_view help,
                                                std::vector<double> bounds,
                                                MetricLabels labels = {});

  // All metrics. Never waits for an executor, also if one is blocked. Counts of calls are those of
  // now. Memory, links and the counters of executors are as each executor last told them, which it
  // does soon after a call of this, and before the first one has not:
  // verbena_executor_report_age_seconds says how long ago.
  std::string Text(MetricsFormat format) const;

 private:
  friend class internal::MetricsPart;
  explicit Metrics(std::unique_ptr<internal::MetricsCore> core);

  const std::unique_ptr<internal::MetricsCore> core_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_METRICS_H_
