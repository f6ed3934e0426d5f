#include "verbena/transport/connect/bootstrap.h"

#include <fmt/format.h>

#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/status.h"

namespace verbena {
namespace {

Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Fail(absl::Status why) { co_return why; }

}  // namespace

absl::Status CheckBootstrapMessage(size_t bytes) {
  if (bytes <= kMaxBootstrapMessageBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("a message of {} bytes is longer than the bootstrap's limit of {} bytes", bytes,
                  kMaxBootstrapMessageBytes));
}

absl::Status internal::ClosedHere() {
  return absl::CancelledError("the connection was closed on this side");
}

absl::StatusOr<StaticAddresses> ParseStaticAddresses(const std::string& text) {
  StaticAddresses addresses;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name;
    std::string address;
    std::string more;
    words >> name >> address >> more;
    if (name.empty()) continue;
    if (address.empty() || !more.empty()) {
      return absl::InvalidArgumentError(
          fmt::format("line {}, \"{}\", is not a name and an address", number, line));
    }
    const auto [known, is_new] = addresses.emplace(name, address);
    if (!is_new) {
      return absl::InvalidArgumentError(
          fmt::format("line {}: {} has an address already, {}", number, name, known->second));
    }
  }
  return addresses;
}

StaticBootstrap::StaticBootstrap(Bootstrap& below, StaticAddresses addresses)
    : below_(below), addresses_(std::move(addresses)) {}

absl::StatusOr<std::string> StaticBootstrap::AddressOf(const std::string& name) const {
  auto found = addresses_.find(name);
  if (found != addresses_.end()) return found->second;
  std::string names;
  for (const auto& [known, address] : addresses_) names += (names.empty() ? "" : ", ") + known;
  return absl::NotFoundError(fmt::format("no address for \"{}\"; the table has: {}", name,
                                         names.empty() ? "nothing" : names));
}

VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::unique_ptr<MessageStream>>> StaticBootstrap::Connect(
    std::string target) {
  absl::StatusOr<std::string> address = AddressOf(target);
  if (!address.ok()) return Fail(address.status());
  return below_.Connect(*std::move(address));
}

absl::StatusOr<std::unique_ptr<MessageListener>> StaticBootstrap::Listen(
    const std::string& address) {
  VERBENA_ASSIGN_OR_RETURN(std::string found, AddressOf(address));
  return below_.Listen(found);
}

}  // namespace verbena
