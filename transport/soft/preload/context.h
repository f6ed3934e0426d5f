// One opened soft device, as a program of libibverbs sees it.
//
// Each ibv_open_device makes a SoftDevice of its own, with its own engine thread, GID and LID: what
// a program reads from a context leads to the objects that it makes on it, and asynchronous events
// go to the context whose objects they concern. Several contexts of one device reach each other as
// those of two processes do.
//
// Over shared memory alone the LID is a number that this user's soft devices of this host share out
// among themselves, and the GID follows from it: a program that sends its peer only the LID is
// found as well as one that sends the GID.

#ifndef VERBENA_TRANSPORT_SOFT_PRELOAD_CONTEXT_H_
#define VERBENA_TRANSPORT_SOFT_PRELOAD_CONTEXT_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "verbena/transport/soft/preload/objects.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::preload {

class Context {
 public:
  static constexpr Kind kKind = Kind::kContext;

  // `device` is an entry of DeviceList. The context lives until Close().
  static absl::StatusOr<Context*> Open(ibv_device* device);
  // Destroys what the program left alive, too.
  static void Close(Context* context);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  SoftDevice& device() { return *device_; }
  ibv_context* visible() { return &verbs_.context; }

  ibv_device_attr attributes() const;
  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t port);
  // The address by which the device finds a peer to which the program gave `address`.
  ibv_ah_attr Resolve(const ibv_ah_attr& address) const;

 private:
  Context(ibv_device* visible, std::unique_ptr<SoftDevice> device, uint16_t lid);
  ~Context();
  bool DestroyObjects();

  std::unique_ptr<SoftDevice> device_;
  const uint16_t lid_;
  // Whether the device itself has a LID, and knows those of its peers.
  bool addressed_by_lid_ = false;
  verbs_context verbs_{};
};

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_SOFT_PRELOAD_CONTEXT_H_
