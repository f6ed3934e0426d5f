#include "verbena/transport/soft/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "fmt/format.h"

namespace verbena::internal::soft {

std::string AddressText(const DeviceAddress& address) {
  if (address.lid != 0) {
    in6_addr ip{};
    std::memcpy(&ip, address.gid.raw, sizeof(ip));
    char host[INET6_ADDRSTRLEN] = "";
    if (IN6_IS_ADDR_V4MAPPED(&ip)) {
      inet_ntop(AF_INET, address.gid.raw + 12, host, sizeof(host));
      return fmt::format("{}:{}", host, address.lid);
    }
    inet_ntop(AF_INET6, &ip, host, sizeof(host));
    return fmt::format("[{}]:{}", host, address.lid);
  }
  std::string text;
  for (size_t i = 0; i < sizeof(address.gid.raw); i += 2) {
    if (i != 0) text += ':';
    text += fmt::format("{:02x}{:02x}", address.gid.raw[i], address.gid.raw[i + 1]);
  }
  return text;
}

}  // namespace verbena::internal::soft
