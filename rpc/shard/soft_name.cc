#include "verbena/rpc/shard/soft_name.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "fmt/format.h"
#include "verbena/transport/base/host_port.h"
#include "verbena/transport/base/status_macros.h"

namespace verbena::internal {
namespace {

constexpr std::string_view kSoft = "soft";
constexpr std::string_view kPrefix = "soft:";
constexpr std::string_view kTcp = "tcp";
constexpr std::string_view kTcpPrefix = "tcp:";
// The environment may hold anything: a message repeats no more of it.
constexpr size_t kMaxPrintedBytes = 200;

absl::Status BadName(const std::string& name, std::string_view why) {
  return absl::InvalidArgumentError(fmt::format(
      "there is no device \"{}\": {}; the software device is named soft, soft:tcp, soft:tcp:PORT, "
      "soft:tcp:ADDRESS:PORT (soft:tcp:[ADDRESS]:PORT for IPv6) or soft:PORT",
      absl::CHexEscape(name.substr(0, kMaxPrintedBytes)), why));
}

std::optional<uint16_t> PortOf(std::string_view digits) {
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return port;
}

bool IsNumeric(const std::string& host) {
  in_addr ipv4{};
  in6_addr ipv6{};
  return inet_pton(AF_INET, host.c_str(), &ipv4) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &ipv6) == 1;
}

// `rest` is what follows "soft:tcp:".
absl::StatusOr<TcpWireOptions> ParseTcp(const std::string& name, const std::string& rest) {
  if (const std::optional<uint16_t> port = PortOf(rest))
    return TcpWireOptions{.address = "", .port = *port};
  if (rest.find(':') == std::string::npos) {
    return BadName(name, "the port is not a number from 0 to 65535");
  }
  const absl::StatusOr<HostPort> parsed = ParseHostPort(rest);
  if (!parsed.ok()) return BadName(name, std::string(parsed.status().message()));
  if (!IsNumeric(parsed->host)) {
    return BadName(name, fmt::format("\"{}\" is no numeric IP address", parsed->host));
  }
  return TcpWireOptions{.address = parsed->host, .port = parsed->port};
}

}  // namespace

bool IsSoftName(const std::string& name) { return name == kSoft || name.starts_with(kPrefix); }

absl::StatusOr<SoftName> ParseSoftName(const std::string& name) {
  if (name == kSoft) return SoftName{.shared_memory = true};
  const std::string rest = name.substr(kPrefix.size());
  if (rest == kTcp) return SoftName{.tcp = TcpWireOptions{}};
  if (rest.starts_with(kTcpPrefix)) {
    VERBENA_ASSIGN_OR_RETURN(TcpWireOptions tcp, ParseTcp(name, rest.substr(kTcpPrefix.size())));
    return SoftName{.tcp = std::move(tcp)};
  }
  const std::optional<uint16_t> port = PortOf(rest);
  if (!port.has_value()) return BadName(name, "what follows \"soft:\" is neither tcp nor a port");
  return SoftName{.shared_memory = true, .tcp = TcpWireOptions{.address = "", .port = *port}};
}

std::string TcpName(const TcpWireOptions& tcp) {
  if (!tcp.address.empty())
    return fmt::format("soft:tcp:{}", FormatHostPort(tcp.address, tcp.port));
  return tcp.port == 0 ? "soft:tcp" : fmt::format("soft:tcp:{}", tcp.port);
}

}  // namespace verbena::internal
