// The soft devices of this process: soft0 and so on, as many as VERBENA_SOFT_DEVICES says.
//
// They exist for as long as the process, and are opened when the program opens them.

#ifndef VERBENA_TRANSPORT_PRELOAD_PRELOADED_DEVICES_H_
#define VERBENA_TRANSPORT_PRELOAD_PRELOADED_DEVICES_H_

#include <infiniband/verbs.h>

#include <cstdint>

namespace verbena::internal::preload {

class PreloadedDevices {
 public:
  static constexpr int kMaxDevices = 16;

  static PreloadedDevices& Get();

  int size() const { return size_; }
  ibv_device* at(int index) { return &entries_[index].device; }
  // -1 for a device that is none of ours.
  int IndexOf(const ibv_device* device) const;
  // The node GUID of a device: the same in every process of this host.
  static __be64 GuidOf(int index);

 private:
  // Providers recognise their devices by what follows the ibv_device: nothing.
  struct Entry {
    ibv_device device;
    void* nothing[32];
  };

  PreloadedDevices();

  int size_ = 1;
  Entry entries_[kMaxDevices]{};
};

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_PRELOADED_DEVICES_H_
