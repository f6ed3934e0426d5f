// CmDevices: the devices that ids are bound to, opened once for the process.
//
// Each has a protection domain for programs that bring none. Never closed, as the manual of
// rdma_get_devices promises.

#ifndef VERBENA_TRANSPORT_PRELOAD_RDMA_CM_DEVICES_H_
#define VERBENA_TRANSPORT_PRELOAD_RDMA_CM_DEVICES_H_

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cstdint>
#include <vector>

#include "verbena/transport/preload/rdma_cm_message.h"

namespace verbena::internal::preload {

class CmDevices {
 public:
  struct Device {
    ibv_context* verbs;
    ibv_pd* pd;
    ibv_gid gid;
    // READs and atomics in flight that a queue pair serves and starts.
    uint8_t responder_resources;
    uint8_t initiator_depth;
  };

  // Opens them with the first call, which must not hold CmLoop's lock. Safe from any thread.
  static const CmDevices& Get();

  const std::vector<Device>& devices() const { return devices_; }
  // Binds an id to the first device, through which every address is reached. Calls no verbs.
  // Precondition: there is a device.
  void Bind(rdma_cm_id& id) const;
  // The device of a bound id.
  const Device& Of(const rdma_cm_id& id) const;

  // Fills in where the id's device is reached: GID, LID and MTU. 0 or an errno.
  static int Describe(const rdma_cm_id& id, CmMessage& message);

 private:
  CmDevices();

  std::vector<Device> devices_;
};

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_RDMA_CM_DEVICES_H_
