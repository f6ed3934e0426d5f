// The figures of the demo, as people read them: numbers with separators, and the table at the end.
//
// Pure functions; any thread.

#ifndef VERBENA_EXAMPLES_KV_REPORT_H_
#define VERBENA_EXAMPLES_KV_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "examples/kv/phase.h"

namespace kv {

// 1234567 as "1,234,567".
std::string Grouped(uint64_t number);

// 1234567 as "1.2 MB".
std::string Sized(uint64_t bytes);

// One row for each phase, below a head; lines end with '\n'.
std::string Table(const std::vector<PhaseReport>& phases);

}  // namespace kv

#endif  // VERBENA_EXAMPLES_KV_REPORT_H_
