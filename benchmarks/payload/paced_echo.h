// PacedEcho: small calls, one per interval, whose latencies show what delays them.
//
// A call's latency counts from the moment at which the call was due. So a thread that is held up
// for a millisecond does not hide the calls that it made late. The executor's timer starts each
// call and adds a fraction of a microsecond to each latency. Used on one executor; owns only its
// figures.

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
  // `stub` must outlive the PacedEcho.
  PacedEcho(bench::PayloadBench::Stub& stub, size_t bytes, uint64_t interval_ns)
      : stub_(stub), bytes_(bytes), interval_ns_(interval_ns) {}

  // Calls at least once, and then until `until_ns`, or until `status` is not OK. A call that fails
  // sets `status`; others may set it, too.
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
