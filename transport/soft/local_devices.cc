#include "verbena/transport/soft/local_devices.h"

#include <utility>

namespace verbena::internal::soft {
LocalDevices& LocalDevices::Get() {
  static LocalDevices* devices = new LocalDevices;
  return *devices;
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
