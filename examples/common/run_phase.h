// RunPhase: runs a Phase from start to end, for a program with a terminal. A line shows the
// progress, and a signal cancels the phase.
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

// Returns the first error of a call, or CANCELLED after a signal. Adds the phase's figures to `sum`
// in every case.
absl::Status RunPhase(verbena::Runtime& runtime, Work& work, int in_flight, StopSignals& signals,
                      Progress& progress, PhaseReport& sum);

}  // namespace examples

#endif  // VERBENA_EXAMPLES_COMMON_RUN_PHASE_H_
