#include "verbena/rpc/annotate.h"

#include <string>

#include "absl/strings/cord.h"
#include "fmt/format.h"

namespace verbena {

absl::Status Annotate(const absl::Status& status, std::string_view what) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), fmt::format("{}: {}", what, std::string(status.message())));
  status.ForEachPayload([&annotated](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

}  // namespace verbena
