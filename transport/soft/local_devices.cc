#include "verbena/transport/soft/local_devices.h"

#include <sys/random.h>

#include <cstring>
#include <random>
#include <utility>

namespace verbena::internal::soft {
namespace {

// A locally assigned IPv6 prefix, so that the GID is a valid address that nobody routes. Bytes 4 to
// 9 are 0.
constexpr uint8_t kPrefix[4] = {0xfd, 'v', 'b', 'n'};
constexpr size_t kUniqueOffset = 10;

}  // namespace

LocalDevices& LocalDevices::Get() {
  static LocalDevices* devices = new LocalDevices;
  return *devices;
}

ibv_gid LocalDevices::NewGid(bool predictable) {
  ibv_gid gid{};
  std::memcpy(gid.raw, kPrefix, sizeof(kPrefix));
  uint64_t unique = 0;
  if (predictable) {
    std::lock_guard<std::mutex> lock(mutex_);
    unique = ++last_predictable_;
  } else if (getrandom(&unique, sizeof(unique), 0) != static_cast<ssize_t>(sizeof(unique))) {
    unique = std::random_device()();
  }
  for (size_t i = kUniqueOffset; i < sizeof(gid.raw); ++i, unique >>= 8) {
    gid.raw[i] = static_cast<uint8_t>(unique);
  }
  return gid;
}

void LocalDevices::Add(const DeviceAddress& address, std::weak_ptr<Rnic> device) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_[address] = std::move(device);
}

void LocalDevices::Remove(const DeviceAddress& address) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_.erase(address);
}

std::shared_ptr<Rnic> LocalDevices::Find(const DeviceAddress& address) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = devices_.find(address);
  return found == devices_.end() ? nullptr : found->second.lock();
}

std::vector<std::shared_ptr<Rnic>> LocalDevices::All() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<Rnic>> all;
  for (auto& [_, device] : devices_) {
    if (std::shared_ptr<Rnic> alive = device.lock()) all.push_back(std::move(alive));
  }
  return all;
}

}  // namespace verbena::internal::soft
