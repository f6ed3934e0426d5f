#include "verbena/rpc/naming/directory.h"

#include <atomic>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/rpc/naming/resolved_text.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status_macros.h"

namespace verbena::internal {
namespace {

std::atomic<const Directory*> entered = nullptr;

}  // namespace

absl::Status CheckServerEntry(const ServerEntry& entry) {
  const ResolvedServer& server = entry.server;
  if (server.addresses.empty() || server.addresses.size() > ResolvedServer::kMaxAddresses) {
    return absl::InvalidArgumentError(
        fmt::format("the server has {} addresses, but must have 1 to {}", server.addresses.size(),
                    size_t{ResolvedServer::kMaxAddresses}));
  }
  for (const std::string& each : server.addresses) {
    if (each.empty()) return absl::InvalidArgumentError("an address of the server is empty");
    VERBENA_RETURN_IF_ERROR(CheckResolvedText("a server's address", each));
  }
  if (server.name.empty()) return absl::InvalidArgumentError("a server's name is missing");
  VERBENA_RETURN_IF_ERROR(CheckResolvedText("a server's name", server.name));
  VERBENA_RETURN_IF_ERROR(CheckResolvedText("a server's zone", server.zone));
  if (server.weight < 1 || server.weight > ResolvedServer::kMaxWeight) {
    return absl::InvalidArgumentError(
        fmt::format("the server's weight is {}, but must be in [1, {}]", server.weight,
                    uint32_t{ResolvedServer::kMaxWeight}));
  }
  if (entry.devices.size() > ServerEntry::kMaxDevices) {
    return absl::InvalidArgumentError(fmt::format("the server has {} devices, but may have {}",
                                                  entry.devices.size(),
                                                  size_t{ServerEntry::kMaxDevices}));
  }
  for (const std::string& each : entry.devices) {
    VERBENA_RETURN_IF_ERROR(CheckResolvedText("a server's device", each));
  }
  return absl::OkStatus();
}

void Directory::Enter(const Directory& etcd) {
  VERBENA_CHECK(entered.exchange(&etcd) == nullptr) << "etcd's directory is entered twice";
}

absl::StatusOr<const Directory*> Directory::Etcd() {
  const Directory* directory = entered.load();
  if (directory != nullptr) return directory;
  return absl::FailedPreconditionError(
      "this program cannot reach etcd: add @verbena//rpc:etcd to its deps, for etcd:// targets");
}

}  // namespace verbena::internal
