#include "verbena/transport/base/host_port.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <charconv>
#include <cstddef>
#include <cstring>
#include <system_error>

#include "absl/status/status.h"

namespace verbena::internal {
namespace {

// The longest name that DNS allows; longer texts are no host names, and are not repeated in
// messages.
constexpr size_t kMaxHostBytes = 253;

absl::Status BadAddress(const std::string& text, const char* why) {
  return absl::InvalidArgumentError(
      fmt::format("bad address \"{}\": {}; expected host:port, such as storage-7:4000, "
                  "127.0.0.1:4000 or [::1]:4000",
                  text.substr(0, kMaxHostBytes), why));
}

// Control characters, blanks and a NUL would reach the resolver, or a terminal.
bool IsHostCharacter(char c) { return c > ' ' && c < 0x7f && c != '[' && c != ']' && c != '"'; }

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return BadAddress(text, "it has no port");
  std::string host = text.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']') && host.size() >= 2;
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty()) return BadAddress(text, "it has no host");
  if (host.size() > kMaxHostBytes) return BadAddress(text, "the host is longer than 253 bytes");
  if (host.find(',') != std::string::npos) {
    return BadAddress(text, "it names several servers: write static:host:port,host:port");
  }
  if (!bracketed && host.find(':') != std::string::npos) {
    return BadAddress(text, "an IPv6 address needs brackets");
  }
  for (char c : host) {
    if (!IsHostCharacter(c)) return BadAddress(text, "the host has a character that none has");
  }
  const std::string digits = text.substr(colon + 1);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return BadAddress(text, "the port is not a number from 0 to 65535");
  }
  return HostPort{std::move(host), port};
}

std::string SourceOf(const std::string& peer) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(peer);
  if (!parsed.ok()) return peer;
  in_addr ipv4{};
  if (inet_pton(AF_INET, parsed->host.c_str(), &ipv4) == 1) return parsed->host;
  // A link-local address may have its interface behind it.
  in6_addr ipv6{};
  if (inet_pton(AF_INET6, parsed->host.substr(0, parsed->host.find('%')).c_str(), &ipv6) != 1) {
    return peer;
  }
  char text[INET6_ADDRSTRLEN] = "";
  if (IN6_IS_ADDR_V4MAPPED(&ipv6)) {
    inet_ntop(AF_INET, &ipv6.s6_addr[12], text, sizeof(text));
    return text;
  }
  if (IN6_IS_ADDR_LOOPBACK(&ipv6)) return parsed->host;
  std::memset(&ipv6.s6_addr[8], 0, 8);
  inet_ntop(AF_INET6, &ipv6, text, sizeof(text));
  return fmt::format("{}/64", text);
}

std::string FormatHostPort(const std::string& host, uint16_t port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace verbena::internal
