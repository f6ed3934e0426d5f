#include "verbena/rpc/server/method_table.h"

#include <algorithm>

#include "fmt/format.h"
#include "verbena/rpc/call/method_shape.h"
#include "verbena/transport/connect/peer.h"

namespace verbena::internal {

absl::Status MethodTable::Add(Service& service) {
  for (const ServerMethod& method : service.methods()) {
    const MethodDescriptor& added = *method.descriptor;
    const auto found =
        std::find_if(offered_.begin(), offered_.end(),
                     [&added](const OfferedMethod& offered) { return offered.id == added.id; });
    if (found != offered_.end()) {
      return absl::AlreadyExistsError(fmt::format(
          "{} has the method id {:#x} of {}: a service was registered twice, or one of the two "
          "needs another name",
          added.full_name, added.id,
          entries_[found - offered_.begin()].method->descriptor->full_name));
    }
    if (offered_.size() == kMaxMethods) {
      return absl::ResourceExhaustedError(fmt::format(
          "{} is one method too many: a server has {} at most", added.full_name, kMaxMethods));
    }
    entries_.push_back({&service, &method, static_cast<int>(entries_.size()), added.streams});
    offered_.push_back({added.id, ShapeOf(added)});
  }
  return absl::OkStatus();
}

}  // namespace verbena::internal
