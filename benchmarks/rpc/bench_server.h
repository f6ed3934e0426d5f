// The serving side of rpc_bench: echoes, and takes part in slices of the floor on the same core and
// thread.

#ifndef VERBENA_BENCHMARKS_RPC_BENCH_SERVER_H_
#define VERBENA_BENCHMARKS_RPC_BENCH_SERVER_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/rpc/runtime.h"

namespace verbena::benchmarks {

struct BenchServerOptions {
  ExecutorMode mode = ExecutorMode::kBusy;
  int core = -1;
  std::string device = "auto";
  // The server has a runtime for each of these, which is its RuntimeOptions::metrics. One runtime
  // serves at a time, at first the first one. When a client sends SERVE_NEXT, the next one serves,
  // and after the last one the first.
  std::vector<bool> metrics = {true};
};

// Serves on the calling thread until a client sends QUIT. Calls `ready` once with the addresses of
// its runtimes, with a space between two, and `serve_floor` for each slice of the floor.
absl::Status RunBenchServer(const BenchServerOptions& options,
                            const std::function<absl::Status()>& serve_floor, const Ready& ready);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_RPC_BENCH_SERVER_H_
