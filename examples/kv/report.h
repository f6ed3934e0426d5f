// The table of figures that the demo prints at its end.
//
// Pure functions; any thread.

#ifndef VERBENA_EXAMPLES_KV_REPORT_H_
#define VERBENA_EXAMPLES_KV_REPORT_H_

#include <string>
#include <vector>

#include "examples/common/phase.h"

namespace kv {

// One row for each phase, below a head; lines end with '\n'.
std::string Table(const std::vector<examples::PhaseReport>& phases);

// One line that compares the rate of calls with that of the same work without calls. Empty if
// `direct` has no calls.
std::string Ratio(const examples::PhaseReport& calls, const examples::PhaseReport& direct);

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_REPORT_H_
