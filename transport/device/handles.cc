#include "verbena/transport/device/handles.h"

#include "fmt/format.h"
#include "verbena/transport/base/log.h"

namespace verbena::internal {

void LogLeakedObject(const Device& device, const char* kind, const absl::Status& status) {
  Log(LogLevel::kError,
      fmt::format("{}: a {} was not destroyed: {}", device.name(), kind, status.ToString()));
}

}  // namespace verbena::internal
