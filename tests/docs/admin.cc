// The code of docs/operations.md compiles. rpc/admin.h's own tests run the like of it.

#include "verbena/rpc/admin.h"

#include <memory>

#include "absl/status/statusor.h"
#include "verbena/rpc/runtime.h"

namespace blocks {

absl::StatusOr<std::unique_ptr<verbena::Admin>> StartAdmin(verbena::Runtime& runtime) {
  return verbena::Admin::Start(runtime,
                               {.address = "0.0.0.0:9180", .socket = "/run/blocks/admin.sock"});
}

}  // namespace blocks
