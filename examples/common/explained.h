// Explained: the Status of a failed call in words for people. Programs still find all they need.

#ifndef VERBENA_EXAMPLES_COMMON_EXPLAINED_H_
#define VERBENA_EXAMPLES_COMMON_EXPLAINED_H_

#include <string>

#include "absl/status/status.h"

namespace examples {

// "<what>: <CODE> (<outcome>): <message>". The code, the Outcome and the details stay. An OK
// status stays OK.
absl::Status Explained(const std::string& what, const absl::Status& status);

}  // namespace examples

#endif  // VERBENA_EXAMPLES_COMMON_EXPLAINED_H_
