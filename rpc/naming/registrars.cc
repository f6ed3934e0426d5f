#include "verbena/rpc/naming/registrars.h"

#include <chrono>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/rpc/naming/resolved_text.h"
#include "verbena/rpc/naming/target.h"
#include "verbena/transport/base/status_macros.h"

namespace verbena::internal {
namespace {

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
  if (const absl::Status checked = CheckServerEntry(entry); !checked.ok()) {
    return Wrong(std::string(checked.message()));
  }
  return entry;
}

}  // namespace

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
