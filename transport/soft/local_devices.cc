#include "verbena/transport/soft/local_devices.h"

#include <sys/random.h>

#include <cstring>
#include <random>
#include <utility>

#include "fmt/format.h"

namespace verbena::internal::soft {
namespace {

// A locally assigned IPv6 prefix, so that the GID is a valid address that nobody routes. Bytes 4 to
// 9 are left for the IPv4 address and port of a wire between hosts.
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

void LocalDevices::Add(const ibv_gid& gid, std::weak_ptr<Rnic> device) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_[GidKey(gid)] = std::move(device);
}

void LocalDevices::Remove(const ibv_gid& gid) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_.erase(GidKey(gid));
}

std::shared_ptr<Rnic> LocalDevices::Find(const ibv_gid& gid) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = devices_.find(GidKey(gid));
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

std::string GidKey(const ibv_gid& gid) {
  return std::string(reinterpret_cast<const char*>(gid.raw), sizeof(gid.raw));
}

std::string GidText(const ibv_gid& gid) {
  std::string text;
  for (size_t i = 0; i < sizeof(gid.raw); i += 2) {
    if (i != 0) text += ':';
    text += fmt::format("{:02x}{:02x}", gid.raw[i], gid.raw[i + 1]);
  }
  return text;
}

}  // namespace verbena::internal::soft
