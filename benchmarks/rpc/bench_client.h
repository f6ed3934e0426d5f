// The calling side of rpc_bench: slices of echo calls, each reply compared byte by byte.

#ifndef VERBENA_BENCHMARKS_RPC_BENCH_CLIENT_H_
#define VERBENA_BENCHMARKS_RPC_BENCH_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/rpc/bench.verbena.pb.h"
#include "verbena/benchmarks/harness/latency_histogram.h"
#include "verbena/benchmarks/harness/stream_table.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"

namespace verbena::benchmarks {

struct CallSlice {
  int size = 32;
  int outstanding = 1;
  Duration duration = std::chrono::milliseconds(100);
  uint64_t max_calls = ~uint64_t{0};
  // Allocations are counted from this call on; it should come after every worker has warmed up.
  uint64_t count_from = 0;
  // Each worker reuses one reply. If false, each call returns a new reply (the StatusOr overload).
  bool reuse_reply = true;
};

struct CallSample {
  double p50_ns = 0;
  double p99_ns = 0;
  double calls_per_s = 0;
  uint64_t calls = 0;
  uint64_t allocations = 0;  // of this process, from call count_from to the last
};

struct StreamSlice {
  int size = 1024;
  int streams = 1;
  Duration duration = std::chrono::milliseconds(100);
};

// Owns a runtime without threads: the calling thread runs its executor during a slice.
class BenchClient {
 public:
  static absl::StatusOr<std::unique_ptr<BenchClient>> Connect(const std::string& address,
                                                              ExecutorMode mode, int core,
                                                              const std::string& device = "auto",
                                                              bool metrics = true);

  const Runtime& runtime() const { return *runtime_; }

  absl::StatusOr<CallSample> RunSlice(const CallSlice& slice);
  // Reads streams that the server writes as fast as it may, side by side.
  absl::StatusOr<StreamSample> RunStreams(const StreamSlice& slice);
  absl::StatusOr<bench::ServerCounters> Control(bench::ControlRequest::Action action);

 private:
  BenchClient(std::unique_ptr<Runtime> runtime, const std::string& address);

  Task<void> Workers(const CallSlice& slice, absl::Status& status, CallSample& sample);
  Task<void> Readers(const StreamSlice& slice, absl::Status& status, StreamSample& sample);
  Task<void> Reader(const StreamSlice& slice, absl::Status& status);
  Task<void> Worker(const CallSlice& slice, uint8_t first_round, TimePoint until,
                    absl::Status& status);

  const std::unique_ptr<Runtime> runtime_;
  Channel channel_;
  bench::Bench::Stub stub_;
  LatencyHistogram latencies_;
  uint64_t calls_ = 0;
  uint64_t allocations_before_ = 0;
  TimePoint began_{};  // the readers, once all are warm
  int warm_ = 0;       // of them
};

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_RPC_BENCH_CLIENT_H_
