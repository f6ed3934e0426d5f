// StartAdmin: the admin server that a program's --admin=ADDRESS asks for.
//
//   VERBENA_ASSIGN_OR_RETURN(const auto admin, StartAdmin(*runtime, absl::GetFlag(FLAGS_admin)));

#ifndef VERBENA_EXAMPLES_COMMON_ADMIN_H_
#define VERBENA_EXAMPLES_COMMON_ADMIN_H_

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/rpc/admin.h"
#include "verbena/rpc/runtime.h"

namespace examples {

// nullptr if `address` is empty. Otherwise the runtime must outlive it.
inline absl::StatusOr<std::unique_ptr<verbena::Admin>> StartAdmin(verbena::Runtime& runtime,
                                                                  const std::string& address) {
  if (address.empty()) return nullptr;
  return verbena::Admin::Start(runtime, {.address = address});
}

// Tells people where a server's calls and its pages are, if it has any pages. Whoever starts the
// server reads the first line.
inline void PrintAddresses(const std::string& server, const verbena::Admin* admin) {
  fmt::print("listening on {}\n", server);
  if (admin != nullptr) fmt::print("status at http://{}/status\n", admin->address());
  std::fflush(stdout);
}

}  // namespace examples

#endif  // VERBENA_EXAMPLES_COMMON_ADMIN_H_
