// SharedDevice: a device that one or two hosts of this process use, with its asynchronous events.
//
// A device has one queue of events for all its objects. This class reads the queue, acknowledges
// each event at once, and keeps the event until the host that owns its object asks for the event.
// Safe from any thread.

#ifndef VERBENA_TESTS_CONFORMANCE_SHARED_DEVICE_H_
#define VERBENA_TESTS_CONFORMANCE_SHARED_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal::conformance {

class SharedDevice {
 public:
  explicit SharedDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  Device& device() { return *device_; }

  // Takes one event of `type` about `object`. DEADLINE_EXCEEDED names the object's events that came
  // instead.
  absl::Status AwaitEvent(ibv_event_type type, const void* object, uint32_t timeout_ms);
  // Drops the events of an object that is gone: its address may be used again.
  void Forget(const void* object);

 private:
  struct Event {
    ibv_event_type type;
    const void* object;
  };

  // Reads what waits in the device's queue.
  void Drain();
  bool Take(ibv_event_type type, const void* object);

  std::unique_ptr<Device> device_;
  std::mutex mutex_;
  std::vector<Event> events_;
};

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_SHARED_DEVICE_H_
