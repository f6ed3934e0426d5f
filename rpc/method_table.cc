#include "verbena/rpc/method_table.h"

#include "fmt/format.h"

namespace verbena {

absl::Status MethodTable::Add(Service& service) {
  for (const ServerMethod& method : service.methods()) {
    const int index = static_cast<int>(entries_.size());
    auto [found, added] = index_.emplace(method.descriptor->id, index);
    if (!added) {
      return absl::AlreadyExistsError(
          fmt::format("{} has the method id {:#x} of {}: a service was registered twice, or one of "
                      "the two needs "
                      "another name",
                      method.descriptor->full_name, method.descriptor->id,
                      entries_[found->second].method->descriptor->full_name));
    }
    entries_.push_back({&service, &method});
  }
  return absl::OkStatus();
}

}  // namespace verbena
