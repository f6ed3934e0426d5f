#include "verbena/transport/soft/device_address.h"

#include "fmt/format.h"

namespace verbena::internal::soft {

std::string AddressText(const DeviceAddress& address) {
  std::string text;
  for (size_t i = 0; i < sizeof(address.gid.raw); i += 2) {
    if (i != 0) text += ':';
    text += fmt::format("{:02x}{:02x}", address.gid.raw[i], address.gid.raw[i + 1]);
  }
  if (address.lid != 0) text += fmt::format("/{}", address.lid);
  return text;
}

}  // namespace verbena::internal::soft
