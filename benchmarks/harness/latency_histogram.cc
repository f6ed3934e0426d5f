#include "verbena/benchmarks/harness/latency_histogram.h"

#include <algorithm>
#include <cmath>

namespace verbena::benchmarks {

LatencyHistogram::LatencyHistogram() : buckets_(kBuckets) {}

void LatencyHistogram::Add(const LatencyHistogram& other) {
  for (std::size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
}

void LatencyHistogram::Clear() {
  std::fill(buckets_.begin(), buckets_.end(), 0);
  count_ = 0;
}

double LatencyHistogram::PercentileNs(double percent) const {
  const auto rank = static_cast<std::uint64_t>(std::ceil(percent / 100 * double(count_)));
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    seen += buckets_[bucket];
    if (seen >= std::max<std::uint64_t>(rank, 1)) return MiddleOf(bucket);
  }
  return 0;
}

double LatencyHistogram::MiddleOf(std::size_t bucket) {
  if (bucket < 2 * kHalf) return static_cast<double>(bucket);
  const std::size_t shift = bucket / kHalf - 1;
  const auto lowest = static_cast<double>((bucket - shift * kHalf) << shift);
  return lowest + static_cast<double>((std::uint64_t{1} << shift) - 1) / 2;
}

}  // namespace verbena::benchmarks
