#include "tests/transport/connect/scripted_bootstrap.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "verbena/transport/base/status.h"

namespace verbena {

ScriptedBootstrap::ScriptedBootstrap(LocalNetwork& network, Script script)
    : bootstrap_(network), script_(std::move(script)) {}

Task<absl::StatusOr<std::unique_ptr<MessageStream>>> ScriptedBootstrap::Connect(
    std::string target) {
  VERBENA_CO_RETURN_IF_ERROR(co_await script_(target));
  co_return co_await bootstrap_.Connect(std::move(target));
}

absl::StatusOr<std::unique_ptr<MessageListener>> ScriptedBootstrap::Listen(
    const std::string& address) {
  return bootstrap_.Listen(address);
}

}  // namespace verbena
