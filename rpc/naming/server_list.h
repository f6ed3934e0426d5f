// A list of servers as a file has it: a line each, with the addresses and what else is known.
//
//   # address            options
//   10.0.0.7:4000        name=storage-7 weight=3 zone=a
//   10.0.0.8:4000|10.1.0.8:4000
//
// A pure function. Names, zones and addresses are of at most 255 printable ASCII characters. Errors
// name the file and the line, up to three of them, and show at most 100 bytes of each text.

#ifndef VERBENA_RPC_NAMING_SERVER_LIST_H_
#define VERBENA_RPC_NAMING_SERVER_LIST_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/rpc/resolver.h"

namespace verbena::internal {

// INVALID_ARGUMENT also for a list without a server: a file that is being written may be empty.
absl::StatusOr<std::vector<ResolvedServer>> ParseServerList(std::string_view path,
                                                            std::string_view text);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_SERVER_LIST_H_
