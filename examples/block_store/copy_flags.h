// --in_flight and --request_bytes, which both programs that copy trees have.

#ifndef VERBENA_EXAMPLES_BLOCK_STORE_COPY_FLAGS_H_
#define VERBENA_EXAMPLES_BLOCK_STORE_COPY_FLAGS_H_

#include "absl/status/statusor.h"
#include "examples/block_store/tree_copy.h"

namespace block_store {

// INVALID_ARGUMENT names the flag and what it may be.
absl::StatusOr<CopyOptions> CopyOptionsFromFlags();

}  // namespace block_store

#endif  // VERBENA_EXAMPLES_BLOCK_STORE_COPY_FLAGS_H_
