#include "verbena/transport/connect/bootstrap.h"

#include <fmt/format.h>

namespace verbena {

absl::Status CheckBootstrapMessage(size_t bytes) {
  if (bytes <= kMaxBootstrapMessageBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("a message of {} bytes is longer than the bootstrap's limit of {} bytes", bytes,
                  kMaxBootstrapMessageBytes));
}

}  // namespace verbena
