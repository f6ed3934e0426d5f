// One opened soft device, as a program of libibverbs sees it.

#ifndef VERBENA_TRANSPORT_PRELOAD_CONTEXT_H_
#define VERBENA_TRANSPORT_PRELOAD_CONTEXT_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "verbena/transport/preload/objects.h"
#include "verbena/transport/preload/process_device.h"
#include "verbena/transport/soft/event_queue.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal::preload {

class Context {
 public:
  static constexpr Kind kKind = Kind::kContext;

  // `device` is an entry of PreloadedDevices. The context lives until Close().
  static absl::StatusOr<Context*> Open(ibv_device* device);
  // Destroys what the program left alive, too.
  static void Close(Context* context);
  // The context of an object that is alive.
  static Context* From(const ibv_context* visible);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  SoftDevice& device() { return shared_->device(); }
  const ProcessDevice& shared() const { return *shared_; }
  ibv_context* visible() { return &verbs_.context; }
  // Asynchronous events that concern objects of this context. An event's element is the program's
  // object.
  soft::EventQueue& events() { return events_; }

  ibv_device_attr attributes();
  absl::StatusOr<ibv_port_attr> QueryPort(uint8_t port);

 private:
  Context(ibv_device* visible, std::shared_ptr<ProcessDevice> shared);
  ~Context();
  bool DestroyObjects();

  const std::shared_ptr<ProcessDevice> shared_;
  soft::EventQueue events_;
  verbs_context verbs_{};
};

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_CONTEXT_H_
