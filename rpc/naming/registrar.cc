#include "verbena/rpc/naming/registrar.h"

#include <atomic>
#include <chrono>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/rpc/naming/resolved_text.h"
#include "verbena/rpc/naming/target.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"

namespace verbena::internal {
namespace {

std::atomic<const Directory*> entered = nullptr;

constexpr Duration kLeastTtl = std::chrono::seconds(2);
constexpr Duration kLongestTtl = std::chrono::minutes(10);

absl::Status Wrong(const std::string& what) {
  return absl::InvalidArgumentError("ServerOptions::registration: " + what);
}

bool IsWildcard(std::string_view address) {
  return address.starts_with("0.0.0.0:") || address.starts_with("[::]:");
}

absl::StatusOr<ServerEntry> EntryOf(const RegistrationOptions& options, RegisteredServer server) {
  ServerEntry entry{.server = {.addresses = options.addresses,
                               .name = options.name,
                               .weight = options.weight,
                               .zone = options.zone},
                    .devices = std::move(server.devices),
                    .executors = server.executors};
  if (entry.server.addresses.empty()) {
    if (IsWildcard(server.address)) {
      return Wrong(
          fmt::format("the server listens at {}, which says no host to its clients: set "
                      "addresses",
                      Shown(server.address)));
    }
    entry.server.addresses.push_back(std::move(server.address));
  }
  if (entry.server.name.empty()) entry.server.name = entry.server.addresses.front();
  if (options.weight < 1) {
    return Wrong(fmt::format("weight is {}, but must be in [1, {}]", options.weight,
                             uint32_t{ResolvedServer::kMaxWeight}));
  }
  if (const absl::Status checked = CheckServerEntry(entry); !checked.ok()) {
    return Wrong(std::string(checked.message()));
  }
  return entry;
}

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
  if (server.weight > ResolvedServer::kMaxWeight) {
    return absl::InvalidArgumentError(
        fmt::format("the server's weight is {}, but must be in [0, {}]", server.weight,
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
      "this program cannot reach etcd: for etcd:// targets, link Verbena::etcd (CMake), "
      "verbena-etcd (pkg-config) or @verbena//rpc:etcd (Bazel)");
}

absl::StatusOr<std::unique_ptr<Registrar>> MakeRegistrar(const RegistrationOptions& options,
                                                         RegisteredServer server) {
  if (options.target.empty()) return nullptr;
  if (options.ttl < kLeastTtl || options.ttl > kLongestTtl) {
    return Wrong(
        fmt::format("ttl is {} ms: its range is 2 s to 10 min",
                    std::chrono::duration_cast<std::chrono::milliseconds>(options.ttl).count()));
  }
  VERBENA_ASSIGN_OR_RETURN(Target target, ParseTarget(options.target));
  auto* etcd = std::get_if<EtcdTarget>(&target);
  if (etcd == nullptr) {
    return Wrong(
        fmt::format("the target \"{}\" is none that a server can register at: write "
                    "etcd://host:port/prefix",
                    Shown(options.target)));
  }
  VERBENA_ASSIGN_OR_RETURN(ServerEntry entry, EntryOf(options, std::move(server)));
  VERBENA_ASSIGN_OR_RETURN(const Directory* directory, Directory::Etcd());
  return directory->MakeRegistrar(std::move(*etcd), std::move(entry), options.ttl);
}

}  // namespace verbena::internal
