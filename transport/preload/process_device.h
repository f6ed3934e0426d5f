// The SoftDevice behind all contexts that a process has of one soft device.
//
// A device has one GID and one LID however often a program opens it, as hardware does: programs
// read them from one context, and connect queue pairs of another. So the contexts share a
// SoftDevice. It exists while one of them does, and gets the same LID again if it is opened again.
//
// Over shared memory alone the LID is a number that this user's soft devices of this host share out
// among themselves, and the GID follows from it: a program that sends its peer only the LID is
// found as well as one that sends the GID.
//
// With a TCP wire the device's GID is its IP address, and its LID its TCP port.
//
// Asynchronous events belong to contexts, but a SoftDevice has one queue of them: a thread hands
// them on. It sleeps until there is one. Any thread may call.

#ifndef VERBENA_TRANSPORT_PRELOAD_PROCESS_DEVICE_H_
#define VERBENA_TRANSPORT_PRELOAD_PROCESS_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::preload {

class ProcessDevice {
 public:
  // The device of that index of PreloadedDevices: the one that is open, or a new one.
  static absl::StatusOr<std::shared_ptr<ProcessDevice>> Open(int index, const char* name);
  // Precondition: as for SoftDevice.
  ~ProcessDevice();
  ProcessDevice(const ProcessDevice&) = delete;
  ProcessDevice& operator=(const ProcessDevice&) = delete;

  SoftDevice& device() { return *device_; }
  uint16_t lid() const { return lid_; }
  // The address by which the device finds a peer to which the program gave `address`.
  ibv_ah_attr Resolve(const ibv_ah_attr& address) const;

 private:
  ProcessDevice(std::unique_ptr<SoftDevice> device, uint16_t lid, int stop_fd);
  void HandOnEvents();

  const std::unique_ptr<SoftDevice> device_;
  // The device's own if it has one. Otherwise the number from which its GID was made.
  uint16_t lid_;
  bool addressed_by_lid_ = false;
  const int stop_fd_;
  std::thread events_;
};

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_PROCESS_DEVICE_H_
