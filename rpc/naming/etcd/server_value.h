// Values of servers in etcd: one JSON object for each, under prefix/name.
//
//   {"addresses":["10.0.0.7:4000"],"devices":["mlx5_0"],"executors":4,"weight":3,"zone":"a"}
//
// Pure functions. Fields that a reader does not know are for later versions. Errors show at most
// 100 bytes of each text.

#ifndef VERBENA_RPC_NAMING_ETCD_SERVER_VALUE_H_
#define VERBENA_RPC_NAMING_ETCD_SERVER_VALUE_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "verbena/rpc/naming/directory.h"

namespace verbena::internal {

// The most bytes of a value.
inline constexpr size_t kMaxServerValueBytes = size_t{16} << 10;

std::string EncodeServerValue(const ServerEntry& entry);

// INVALID_ARGUMENT: the name or the value breaks a rule of ResolvedServer, or is too long.
absl::StatusOr<ServerEntry> DecodeServerValue(std::string_view name, std::string_view value);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_ETCD_SERVER_VALUE_H_
