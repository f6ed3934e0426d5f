// The two cores of a benchmark: one for its client, one for its server.

#ifndef VERBENA_BENCHMARKS_HARNESS_CORES_H_
#define VERBENA_BENCHMARKS_HARNESS_CORES_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::benchmarks {

struct TwoCores {
  int client = 0;
  int server = 0;
};

// Two of the cores that this process may run on, on different physical cores if possible.
// FailedPrecondition if it may run on one core only: two spinning processes would take turns there.
absl::StatusOr<TwoCores> ChooseTwoCores();

// Keeps the calling thread, and the threads and processes it starts, on `core`.
absl::Status PinToCore(int core);

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_HARNESS_CORES_H_
