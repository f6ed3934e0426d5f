// LatencyHistogram: counts of latencies, precise to 0.8%, in fixed memory.
//
// Owned by one thread. Record() costs a few instructions and never allocates, so a measured loop
// may call it. Latencies of 2^40 ns (18 minutes) and more share the last bucket.
//
//   LatencyHistogram latencies;
//   latencies.Record(end_ns - start_ns);
//   double p99_us = latencies.PercentileNs(99) / 1e3;

#ifndef VERBENA_BENCHMARKS_HARNESS_LATENCY_HISTOGRAM_H_
#define VERBENA_BENCHMARKS_HARNESS_LATENCY_HISTOGRAM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::benchmarks {

class LatencyHistogram {
 public:
  LatencyHistogram();

  void Record(std::uint64_t latency_ns) {
    ++buckets_[BucketOf(latency_ns)];
    ++count_;
  }

  void Add(const LatencyHistogram& other);
  void Clear();

  std::uint64_t count() const { return count_; }

  // The latency that `percent` of the recorded latencies do not exceed, to the precision above; 0
  // if none was recorded. `percent` lies in (0, 100].
  double PercentileNs(double percent) const;

 private:
  // Values below 2^kSubBits have a bucket each; above, each power of two is cut into
  // 2^(kSubBits-1).
  static constexpr int kSubBits = 8;
  static constexpr int kMaxBits = 40;
  static constexpr std::size_t kHalf = std::size_t{1} << (kSubBits - 1);
  static constexpr std::size_t kBuckets = kHalf * (kMaxBits - kSubBits + 2);

  static std::size_t BucketOf(std::uint64_t latency_ns) {
    constexpr std::uint64_t kLimit = (std::uint64_t{1} << kMaxBits) - 1;
    const std::uint64_t value = latency_ns < kLimit ? latency_ns : kLimit;
    if (value < 2 * kHalf) return value;
    const int shift = 64 - __builtin_clzll(value) - kSubBits;
    return static_cast<std::size_t>(shift) * kHalf + (value >> shift);
  }

  static double MiddleOf(std::size_t bucket);

  std::vector<std::uint64_t> buckets_;
  std::uint64_t count_ = 0;
};

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_HARNESS_LATENCY_HISTOGRAM_H_
