// PacedEcho: small calls, one each interval, whose latency shows what holds them up.
//
// A call's latency counts from the moment at which it was due, so a thread that something holds up
// for a millisecond does not hide the calls that it did not make meanwhile. The executor's timer
// starts each call, so all latencies have a part of a microsecond that is the timer's. One
// executor; owns nothing but its figures.

#ifndef VERBENA_BENCHMARKS_PAYLOAD_PACED_ECHO_H_
#define VERBENA_BENCHMARKS_PAYLOAD_PACED_ECHO_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "benchmarks/payload/payload_bench.verbena.pb.h"
#include "verbena/benchmarks/harness/latency_histogram.h"
#include "verbena/transport/coro/task.h"

namespace verbena::benchmarks {

class PacedEcho {
 public:
  // `stub` outlives it.
  PacedEcho(bench::PayloadBench::Stub& stub, size_t bytes, uint64_t interval_ns)
      : stub_(stub), bytes_(bytes), interval_ns_(interval_ns) {}

  // Calls until `until_ns`, or until a call fails or `status` does. The first failure is `status`.
  Task<void> Run(uint64_t until_ns, absl::Status& status);

  const LatencyHistogram& latencies() const { return latencies_; }
  void Clear() { latencies_.Clear(); }

 private:
  bench::PayloadBench::Stub& stub_;
  const size_t bytes_;
  const uint64_t interval_ns_;
  LatencyHistogram latencies_;
};

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_PAYLOAD_PACED_ECHO_H_
