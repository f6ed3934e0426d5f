// The command bench: calls at a fixed rate, and the latencies that callers with such a rate see.
//
// The loop is open: a call begins when it is due, whether or not others have ended. Its latency
// counts from when it was due, so a server that stands still for a second shows in the latency of
// each call that was due in that second (no coordinated omission). Calls beyond `in_flight` wait,
// and their wait counts. One executor, which polls meanwhile.

#ifndef VERBENA_TOOLS_VERBENA_BENCH_H_
#define VERBENA_TOOLS_VERBENA_BENCH_H_

#include <array>
#include <cstdint>
#include <string>

#include "tools/verbena/calls.h"
#include "verbena/transport/base/clock.h"

namespace verbena::command {

struct BenchArguments : ServerArguments {
  std::string method;
  std::string json = "{}";
  double rate = 1000;
  double seconds = 5;
  int in_flight = 10000;
};

int RunBench(const BenchArguments& arguments, Terminal& terminal);

// Latencies: a histogram of 64 buckets for each power of two, so that a value is known to 1.6%.
class Latencies {
 public:
  void Add(Duration latency);
  uint64_t count() const { return count_; }
  Duration longest() const { return longest_; }
  // The least latency that at least `share`, 0 to 1, of all do not exceed, within 1.6%. Zero if
  // there are none.
  Duration At(double share) const;

 private:
  static constexpr int kBits = 6;
  static size_t BucketOf(uint64_t ns);
  // The highest value of a bucket.
  static uint64_t Highest(size_t bucket);

  std::array<uint64_t, (64 - kBits + 1) << kBits> counts_{};
  uint64_t count_ = 0;
  Duration longest_{};
};

}  // namespace verbena::command

#endif  // VERBENA_TOOLS_VERBENA_BENCH_H_
