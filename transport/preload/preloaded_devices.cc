#include "verbena/transport/preload/preloaded_devices.h"

#include <endian.h>

#include <cstdio>
#include <cstdlib>

namespace verbena::internal::preload {
namespace {

// The number in VERBENA_SOFT_DEVICES, 1 if there is none.
int DevicesWanted() {
  const char* value = std::getenv("VERBENA_SOFT_DEVICES");
  if (value == nullptr) return 1;
  char* end = nullptr;
  const long wanted = std::strtol(value, &end, 10);
  if (end != value && *end == '\0' && wanted >= 0 && wanted <= PreloadedDevices::kMaxDevices) {
    return static_cast<int>(wanted);
  }
  std::fprintf(stderr,
               "verbena soft device: VERBENA_SOFT_DEVICES=%s: a number from 0 to %d is needed; "
               "there is 1 device\n",
               value, PreloadedDevices::kMaxDevices);
  return 1;
}

// Tells hosts apart; 0 where there is no machine-id.
uint32_t HostNumber() {
  unsigned number = 0;
  if (FILE* file = std::fopen("/etc/machine-id", "re"); file != nullptr) {
    if (std::fscanf(file, "%8x", &number) != 1) number = 0;
    std::fclose(file);
  }
  return number;
}

}  // namespace

// Never destroyed: programs may hold an ibv_device for as long as they like.
PreloadedDevices& PreloadedDevices::Get() {
  static PreloadedDevices* list = new PreloadedDevices;
  return *list;
}

PreloadedDevices::PreloadedDevices() : size_(DevicesWanted()) {
  for (int i = 0; i < size_; ++i) {
    ibv_device& device = entries_[i].device;
    device.node_type = IBV_NODE_CA;
    device.transport_type = IBV_TRANSPORT_IB;
    std::snprintf(device.name, sizeof(device.name), "soft%d", i);
    std::snprintf(device.dev_name, sizeof(device.dev_name), "uverbs_soft%d", i);
    // A real device has its files there. These have none.
    std::snprintf(device.dev_path, sizeof(device.dev_path),
                  "/sys/class/infiniband_verbs/uverbs_soft%d", i);
    std::snprintf(device.ibdev_path, sizeof(device.ibdev_path), "/sys/class/infiniband/soft%d", i);
  }
}

int PreloadedDevices::IndexOf(const ibv_device* device) const {
  for (int i = 0; i < size_; ++i) {
    if (&entries_[i].device == device) return i;
  }
  return -1;
}

__be64 PreloadedDevices::GuidOf(int index) {
  static const uint32_t host = HostNumber();
  constexpr uint64_t kLocallyAssigned = 0x0276'6200'0000'0000;  // "vb"
  return htobe64(kLocallyAssigned | uint64_t{host} << 8 | static_cast<uint64_t>(index));
}

}  // namespace verbena::internal::preload
