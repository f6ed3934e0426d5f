// Annotate: a failed Status with more text, and everything else as it was.
//
// A new Status built from code and message alone loses the payloads: the Outcome, by which callers
// decide about retries, and the peer's details. Pure function.
//
//   if (!status.ok()) return Annotate(status, "Write of volume 'db'");

#ifndef VERBENA_RPC_ANNOTATE_H_
#define VERBENA_RPC_ANNOTATE_H_

#include <string_view>

#include "absl/status/status.h"

namespace verbena {

// The same code and payloads, with the message "<what>: <message>". An OK status stays OK.
absl::Status Annotate(const absl::Status& status, std::string_view what);

}  // namespace verbena

#endif  // VERBENA_RPC_ANNOTATE_H_
