// The serving side of rpc_bench: echoes, and takes part in slices of the floor on the same core and
// thread.

#ifndef VERBENA_BENCHMARKS_RPC_BENCH_SERVER_H_
#define VERBENA_BENCHMARKS_RPC_BENCH_SERVER_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/rpc/runtime.h"

namespace verbena::benchmarks {

struct BenchServerOptions {
  ExecutorMode mode = ExecutorMode::kBusy;
  int core = -1;
  std::string device = "auto";
};

// Serves on the calling thread until a client sends QUIT. Calls `ready` once with its address, and
// `serve_floor` for each slice of the floor.
absl::Status RunBenchServer(const BenchServerOptions& options,
                            const std::function<absl::Status()>& serve_floor, const Ready& ready);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_RPC_BENCH_SERVER_H_
