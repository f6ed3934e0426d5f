#include "verbena/transport/connect/host_port.h"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <system_error>

#include "absl/status/status.h"

namespace verbena {
namespace {

// What DNS allows; longer texts are no host names, and are not repeated in messages.
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

std::string FormatHostPort(const std::string& host, uint16_t port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace verbena
