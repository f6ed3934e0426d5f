// Asynchronous events.

#include <infiniband/verbs.h>

#include "verbena/transport/preload/context.h"
#include "verbena/transport/preload/descriptor.h"
#include "verbena/transport/preload/objects.h"
#include "verbena/transport/preload/real_library.h"

namespace verbena::internal::preload {
namespace {

// The context of an object that an event may concern; null for what is not alive.
Context* ContextOfElement(const void* handle) {
  if (auto* cq = Alive<VisibleCq>(handle); cq != nullptr) return Context::From(cq->context);
  if (auto* srq = Alive<VisibleSrq>(handle); srq != nullptr) return Context::From(srq->context);
  if (auto* qp = Alive<VisibleQp>(handle); qp != nullptr) return Context::From(qp->qp_base.context);
  return nullptr;
}

}  // namespace
}  // namespace verbena::internal::preload

namespace preload = verbena::internal::preload;

extern "C" {

int ibv_get_async_event(ibv_context* visible, ibv_async_event* event) {
  auto* context = preload::Alive<preload::Context>(visible);
  if (context == nullptr) {
    return preload::CallReal(&::ibv_get_async_event, "ibv_get_async_event", -1, visible, event);
  }
  do {
    const auto taken = context->events().Take();
    if (!taken.has_value()) continue;
    event->event_type = taken->type;
    // All members of the union that the device uses are pointers.
    event->element.qp = static_cast<ibv_qp*>(taken->element);
    return 0;
  } while (preload::AwaitReadable(visible->async_fd));
  return -1;
}

void ibv_ack_async_event(ibv_async_event* event) {
  preload::Context* context = preload::ContextOfElement(event->element.qp);
  if (context != nullptr) {
    context->events().Acknowledge(event->element.qp, 1);
    return;
  }
  preload::CallRealVoid(&::ibv_ack_async_event, "ibv_ack_async_event", event);
}

}  // extern "C"
