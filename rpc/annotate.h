// Annotate: a failed Status with more text, and everything else as it was.
//
// A new Status built from code and message alone loses the details: the Outcome, by which callers
// decide about retries, and those of the peer. Pure function.
//
//   if (!status.ok()) return Annotate(status, "Write of volume 'db'");

#ifndef VERBENA_RPC_ANNOTATE_H_
#define VERBENA_RPC_ANNOTATE_H_

#include <string_view>

#include "absl/status/status.h"

namespace verbena {

// `status` with the message "<what>: <message>", and with its code and details. An OK status stays
// OK.
absl::Status Annotate(const absl::Status& status, std::string_view what);

}  // namespace verbena

#endif  // VERBENA_RPC_ANNOTATE_H_
