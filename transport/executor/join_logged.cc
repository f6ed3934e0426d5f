#include "verbena/transport/executor/join_logged.h"

#include <exception>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"

namespace verbena::internal {

Task<void> JoinLogged(TaskScope& scope, std::string owner) {
  try {
    co_await scope.Join();
  } catch (const std::exception& error) {
    Log(LogLevel::kError, fmt::format("a task of {} threw: {}", owner, error.what()));
  } catch (...) {
    Log(LogLevel::kError, fmt::format("a task of {} threw", owner));
  }
}

}  // namespace verbena::internal
