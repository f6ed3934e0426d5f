// AskAdmin(): asks the admin server of a process (rpc/admin.h) for a page, over HTTP.
//
// An admin server has a thread of its own, so it answers also while calls hang. Its answer is a
// peer's: size and time are bounded. Blocks; any thread.

#ifndef VERBENA_TOOLS_VERBENA_ADMIN_CLIENT_H_
#define VERBENA_TOOLS_VERBENA_ADMIN_CLIENT_H_

#include <chrono>
#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "verbena/transport/base/name_lookup.h"

namespace verbena::command {

struct AdminLimits {
  // For looking a host name up and for all of its addresses together.
  std::chrono::milliseconds timeout = std::chrono::seconds(5);
  size_t max_bytes = size_t{64} << 20;
};

// What the admin server at `admin`, "host:port" or "unix:PATH", answers to GET `page`, such as
// "/status.json". `lookups` find host names, and outlive the call. Each error is one line that
// names `admin`, and says what to do.
//   INVALID_ARGUMENT: `admin` has neither form.
//   UNAVAILABLE: nobody listens there, or the host has no address.
//   DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED: the answer, or the look-up of the host name, broke a
//     bound of `limits`.
//   FAILED_PRECONDITION: whoever listens there is no admin server, or refuses.
absl::StatusOr<std::string> AskAdmin(
    const std::string& admin, const std::string& page, const AdminLimits& limits = {},
    internal::NameLookups& lookups = internal::NameLookups::System());

}  // namespace verbena::command

#endif  // VERBENA_TOOLS_VERBENA_ADMIN_CLIENT_H_
