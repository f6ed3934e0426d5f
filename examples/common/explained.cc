#include "examples/common/explained.h"

#include "fmt/format.h"
#include "verbena/rpc/status.h"

namespace examples {

absl::Status Explained(const std::string& what, const absl::Status& status) {
  return verbena::Annotate(status,
                           fmt::format("{}: {} ({})", what, absl::StatusCodeToString(status.code()),
                                       verbena::OutcomeName(verbena::OutcomeOf(status))));
}

}  // namespace examples
