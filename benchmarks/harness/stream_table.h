// StreamTable: the figures of a benchmark of streams. A point collects slices of streams and of
// unary calls, and turns them into a row.

#ifndef VERBENA_BENCHMARKS_HARNESS_STREAM_TABLE_H_
#define VERBENA_BENCHMARKS_HARNESS_STREAM_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "verbena/benchmarks/harness/options.h"
#include "verbena/benchmarks/harness/report.h"

namespace verbena::benchmarks {

// The length of each slice. Slices of unary calls and of streams alternate.
inline constexpr int kStreamSliceMs = 100;
// Unary calls in flight during their slices.
inline constexpr int kCallsBesideStreams = 64;
// How many streams a client reads at once. Each number is a row.
inline constexpr int kStreamCounts[] = {1, 100};
// Messages of a stream before it counts as warm. A slice begins when all its streams are warm.
inline constexpr int kStreamWarmUp = 100;
// Messages of a stream between two looks at the clock.
inline constexpr uint32_t kMessagesPerLookAtTheClock = 32;

// The defaults of the user's options.
Options StreamDefaults();

// How many rounds fill `seconds`. A round is one slice of unary calls and one of streams.
int StreamRounds(double seconds);

// One slice of streams.
struct StreamSample {
  double messages_per_s = 0;
  uint64_t messages = 0;
  uint64_t allocations = 0;  // of the client's process, once all streams are warm
};

// All slices of one point. Owned by one thread.
class StreamPoint {
 public:
  StreamPoint(int size, int streams) : size_(size), streams_(streams) {}

  void Add(const StreamSample& sample) { samples_.push_back(sample); }
  void AddUnary(double calls_per_s) { calls_per_s_.push_back(calls_per_s); }

  // The medians, and the mean of the allocations. At least one slice of each kind was added.
  Row ToRow(const std::string& bench, const std::string& device, const std::string& mode) const;

 private:
  const int size_;
  const int streams_;
  std::vector<StreamSample> samples_;
  std::vector<double> calls_per_s_;
};

// Prints `row`, below a heading if it is the first one, and adds it to the report's JSON.
void PrintStreamRow(const Row& row, Report& report);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_HARNESS_STREAM_TABLE_H_
