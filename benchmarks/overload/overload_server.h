// The serving side of overload_bench: each call works for a while on the executor's core.

#ifndef VERBENA_BENCHMARKS_OVERLOAD_OVERLOAD_SERVER_H_
#define VERBENA_BENCHMARKS_OVERLOAD_OVERLOAD_SERVER_H_

#include <chrono>

#include "absl/status/status.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/task.h"

namespace verbena::benchmarks {

inline constexpr Duration kWorkTime = std::chrono::microseconds(50);

// Serves on the calling thread, pinned to `core`, for ever. Calls `ready` once with its address.
absl::Status RunOverloadServer(const ServerOptions& options, int core, const Ready& ready);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_OVERLOAD_OVERLOAD_SERVER_H_
