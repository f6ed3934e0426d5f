// HostPort: "storage-7:4000", "127.0.0.1:4000" or "[::1]:4000", taken apart.

#ifndef VERBENA_TRANSPORT_BASE_HOST_PORT_H_
#define VERBENA_TRANSPORT_BASE_HOST_PORT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace verbena::internal {

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};

// INVALID_ARGUMENT names the text and what is wrong with it.
absl::StatusOr<HostPort> ParseHostPort(const std::string& text);

// The reverse: an IPv6 address gets its brackets.
std::string FormatHostPort(const std::string& host, uint16_t port);

// The source that servers count a peer "host:port" under: an IPv4 address without its port, also if
// it is mapped into IPv6, or the first 64 bits of an IPv6 address ("2001:db8:1:2::/64"), since one
// host may use every address that begins with them. `peer` itself if it has no IP address.
std::string SourceOf(const std::string& peer);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_BASE_HOST_PORT_H_
