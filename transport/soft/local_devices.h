// LocalDevices: the soft devices of this process, by address.
//
// The in-process wire finds its other end here. Holds no device alive; any thread.

#ifndef VERBENA_TRANSPORT_SOFT_LOCAL_DEVICES_H_
#define VERBENA_TRANSPORT_SOFT_LOCAL_DEVICES_H_

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "verbena/transport/soft/address.h"

namespace verbena::internal::soft {

class Rnic;

class LocalDevices {
 public:
  static LocalDevices& Get();

  void Add(const DeviceAddress& address, std::weak_ptr<Rnic> device);
  void Remove(const DeviceAddress& address);
  std::vector<std::shared_ptr<Rnic>> All();
  // Null when there is none.
  std::shared_ptr<Rnic> Find(const DeviceAddress& address);

 private:
  std::mutex mutex_;
  std::map<DeviceAddress, std::weak_ptr<Rnic>> devices_;
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_LOCAL_DEVICES_H_
