// The flags --in_flight and --request_bytes of both programs that copy trees.

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_COPY_FLAGS_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_COPY_FLAGS_H_

#include "absl/status/statusor.h"
#include "examples/block_store/tree_copy.h"

namespace block_store {

// INVALID_ARGUMENT names the flag and its allowed values.
absl::StatusOr<CopyOptions> CopyOptionsFromFlags();

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_COPY_FLAGS_H_
