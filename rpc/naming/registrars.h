// MakeRegistrar: what keeps a server in the directory that its options name.

#ifndef VERBENA_RPC_NAMING_REGISTRARS_H_
#define VERBENA_RPC_NAMING_REGISTRARS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/rpc/naming/directory.h"
#include "verbena/rpc/registration.h"

namespace verbena::internal {

// The server itself, as its entry tells of it.
struct RegisteredServer {
  std::string address;  // that it listens at
  std::vector<std::string> devices;
  uint32_t executors = 0;
};

// nullptr: the options have no target. INVALID_ARGUMENT: an option is out of its range, the target
// is none of a directory, or no client could use the address. FAILED_PRECONDITION: the program does
// not link the directory.
absl::StatusOr<std::unique_ptr<Registrar>> MakeRegistrar(const RegistrationOptions& options,
                                                         RegisteredServer server);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_REGISTRARS_H_
