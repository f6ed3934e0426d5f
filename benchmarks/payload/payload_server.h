// The serving side of payload_bench: answers with payloads, checks those that it receives, and
// takes part in slices of the floor on the same core and thread.

#ifndef VERBENA_BENCHMARKS_PAYLOAD_PAYLOAD_SERVER_H_
#define VERBENA_BENCHMARKS_PAYLOAD_PAYLOAD_SERVER_H_

#include <functional>

#include "absl/status/status.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/rpc/runtime.h"

namespace verbena::benchmarks {

// Serves on the calling thread until the process is killed, and calls `serve_floor` for each slice
// of the floor. Returns only if it fails.
absl::Status RunPayloadServer(const RuntimeOptions& options,
                              const std::function<absl::Status()>& serve_floor, const Ready& ready);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_PAYLOAD_PAYLOAD_SERVER_H_
