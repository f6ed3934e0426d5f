// The serving side of links_bench: one executor that echoes.

#ifndef VERBENA_BENCHMARKS_LINKS_LINKS_SERVER_H_
#define VERBENA_BENCHMARKS_LINKS_LINKS_SERVER_H_

#include "absl/status/status.h"
#include "verbena/benchmarks/harness/server_process.h"
#include "verbena/transport/link/limits.h"

namespace verbena::benchmarks {

// Serves on the calling thread, pinned to `core`, until the process is killed. Sleeps while it has
// nothing to do: the servers of all numbers of links share the core.
absl::Status RunLinksServer(const LinkLimits& limits, int core, const Ready& ready);

// Raises the limit of open descriptors as far as this process may: each link keeps one open.
void RaiseDescriptorLimit();

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_LINKS_LINKS_SERVER_H_
