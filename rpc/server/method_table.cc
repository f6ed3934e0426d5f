#include "verbena/rpc/server/method_table.h"

#include "fmt/format.h"

namespace verbena::internal {

absl::Status MethodTable::Add(Service& service) {
  for (const ServerMethod& method : service.methods()) {
    const int found = Find(method.descriptor->id);
    if (found >= 0) {
      return absl::AlreadyExistsError(
          fmt::format("{} has the method id {:#x} of {}: a service was registered twice, or one of "
                      "the two needs "
                      "another name",
                      method.descriptor->full_name, method.descriptor->id,
                      entries_[found].method->descriptor->full_name));
    }
    entries_.push_back({&service, &method});
    if (2 * entries_.size() > places_.size()) {
      places_.assign(2 * places_.size(), {});
      for (size_t i = 0; i + 1 < entries_.size(); ++i) Insert(i);
    }
    Insert(entries_.size() - 1);
  }
  return absl::OkStatus();
}

void MethodTable::Insert(size_t entry) {
  const uint64_t id = entries_[entry].method->descriptor->id;
  size_t at = id & (places_.size() - 1);
  while (places_[at].index >= 0) at = (at + 1) & (places_.size() - 1);
  places_[at] = {id, static_cast<int>(entry)};
}

}  // namespace verbena::internal
