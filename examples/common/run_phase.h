// RunPhase: a Phase from its start to its end, for a program with a terminal: a line tells how far
// it is, and a signal cancels it.
//
// Called on a thread that runs no executor.
//
//   PhaseReport puts;
//   absl::Status status = RunPhase(*runtime, put, /*in_flight=*/64, signals, progress, puts);

#ifndef VERBENA_EXAMPLES_COMMON_RUN_PHASE_H_
#define VERBENA_EXAMPLES_COMMON_RUN_PHASE_H_

#include "absl/status/status.h"
#include "examples/common/phase.h"
#include "examples/common/progress.h"
#include "examples/common/signals.h"
#include "verbena/rpc/runtime.h"

namespace examples {

// Adds what it took to `sum`, also when it fails: with the first error of a call, or CANCELLED
// after a signal.
absl::Status RunPhase(verbena::Runtime& runtime, Work& work, int in_flight, StopSignals& signals,
                      Progress& progress, PhaseReport& sum);

}  // namespace examples

#endif  // VERBENA_EXAMPLES_COMMON_RUN_PHASE_H_
