// Client code of docs/guide.md that its tests use in more than one file.

#ifndef VERBENA_TESTS_DOCS_BLOCK_CLIENT_H_
#define VERBENA_TESTS_DOCS_BLOCK_CLIENT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/task.h"

namespace guide {

// The bytes of a block.
verbena::Task<absl::StatusOr<uint64_t>> SizeOf(verbena::Channel& channel, std::string name);
// `bytes` must outlive the Task.
verbena::Task<absl::Status> WriteBlock(verbena::Channel& channel, std::string name,
                                       std::string_view bytes);
verbena::Task<absl::Status> WriteBlockWithRetries(verbena::Channel& channel, std::string name,
                                                  std::string bytes);
verbena::Task<absl::StatusOr<std::string>> ReadBlock(verbena::Channel& channel, std::string name);
// How many of the names were free.
verbena::Task<absl::StatusOr<uint64_t>> ReserveNames(verbena::Channel& channel,
                                                     std::vector<std::string> wanted);

}  // namespace guide

#endif  // VERBENA_TESTS_DOCS_BLOCK_CLIENT_H_
