#include "verbena/rpc/log.h"

#include <string>

namespace verbena {

void Log(LogLevel level, const std::string& text) noexcept {
  if (internal::IsLogged(LogComponent::kApplication, level)) {
    internal::WriteLog(LogComponent::kApplication, level, text);
  }
}

}  // namespace verbena
