// Owners of verbs objects: each destroys its object through the Device that made it.
//
// Move-only, single owner, destroyed on any thread. A destruction that verbs refuses (an object
// still in use: our own bug) is logged and the object leaks, since nothing safe can be done with
// it.
//
//   absl::StatusOr<ibv_pd*> pd = device.AllocPd();
//   PdHandle owner(device, *pd);

#ifndef VERBENA_TRANSPORT_DEVICE_HANDLES_H_
#define VERBENA_TRANSPORT_DEVICE_HANDLES_H_

#include <utility>

#include "verbena/transport/device/device.h"

namespace verbena::internal {

// Logs that an object could not be destroyed.
void LogLeakedObject(const Device& device, const char* kind, const absl::Status& status);

template <typename T, absl::Status (Device::*kDestroy)(T*)>
class DeviceHandle {
 public:
  DeviceHandle() = default;
  DeviceHandle(Device& device, T* object) : device_(&device), object_(object) {}
  DeviceHandle(DeviceHandle&& other) noexcept
      : device_(other.device_), object_(std::exchange(other.object_, nullptr)) {}
  DeviceHandle& operator=(DeviceHandle&& other) noexcept {
    if (this != &other) {
      Reset();
      device_ = other.device_;
      object_ = std::exchange(other.object_, nullptr);
    }
    return *this;
  }
  ~DeviceHandle() { Reset(); }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  Device& device() const { return *device_; }

  // Leaves the object to the caller.
  T* Release() { return std::exchange(object_, nullptr); }
  void Reset() {
    T* object = std::exchange(object_, nullptr);
    if (object == nullptr) return;
    absl::Status status = (device_->*kDestroy)(object);
    if (!status.ok()) LogLeakedObject(*device_, "verbs object", status);
  }

 private:
  Device* device_ = nullptr;
  T* object_ = nullptr;
};

using PdHandle = DeviceHandle<ibv_pd, &Device::DeallocPd>;
using MrHandle = DeviceHandle<ibv_mr, &Device::DeregMr>;
using MwHandle = DeviceHandle<ibv_mw, &Device::DeallocMw>;
using CompChannelHandle = DeviceHandle<ibv_comp_channel, &Device::DestroyCompChannel>;
using CqHandle = DeviceHandle<ibv_cq, &Device::DestroyCq>;
using SrqHandle = DeviceHandle<ibv_srq, &Device::DestroySrq>;
using QpHandle = DeviceHandle<ibv_qp, &Device::DestroyQp>;

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_DEVICE_HANDLES_H_
