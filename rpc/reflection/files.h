// FilesThatDeclare: the .proto files that a client of served methods needs to read a name.
//
// A pure function of the descriptors in this process. Any thread.

#ifndef VERBENA_RPC_REFLECTION_FILES_H_
#define VERBENA_RPC_REFLECTION_FILES_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "verbena/rpc/service.h"

namespace verbena::internal {

// Serialized FileDescriptorProtos: the file that declares `name`, a service, message or enum,
// behind those that it imports. Of services they have those of `served` alone.
//   FAILED_PRECONDITION: the descriptors are not in this process.
//   NOT_FOUND: no file that a served service uses declares it.
//   RESOURCE_EXHAUSTED: they are more than `max_bytes`.
absl::StatusOr<std::vector<std::string>> FilesThatDeclare(
    std::string_view name, absl::Span<const ServerMethod* const> served, size_t max_bytes);

// "package.Service" of "package.Service/Method".
std::string_view ServiceOf(const MethodDescriptor& method);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_REFLECTION_FILES_H_
