// Asynchronous events.

#include <infiniband/verbs.h>

#include <cerrno>

#include "verbena/transport/soft/preload/calls.h"
#include "verbena/transport/soft/preload/context.h"
#include "verbena/transport/soft/preload/descriptor.h"
#include "verbena/transport/soft/preload/real_library.h"

namespace verbena::internal::preload {
namespace {

// Puts the program's object in the place of the device's. The object lives until the event is
// acknowledged.
void Translate(ibv_async_event& event) {
  if (event.event_type == IBV_EVENT_CQ_ERR) {
    auto* cq = static_cast<Cq*>(event.element.cq->cq_context);
    ++cq->async_events;
    event.element.cq = cq->handle_of();
  } else if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED) {
    auto* srq = static_cast<Srq*>(event.element.srq->srq_context);
    ++srq->async_events;
    event.element.srq = srq;
  } else {
    auto* qp = static_cast<Qp*>(event.element.qp->qp_context);
    ++qp->async_events;
    event.element.qp = &qp->qp_base;
  }
}

// Acknowledges one event of `object`, unless the program acknowledges more than it took.
template <typename T>
void Acknowledge(T& object, ibv_context* visible, ibv_async_event inner) {
  int taken = object.async_events;
  while (taken > 0 && !object.async_events.compare_exchange_weak(taken, taken - 1)) {
  }
  if (taken > 0) Alive<Context>(visible)->device().AckAsyncEvent(inner);
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
    absl::StatusOr<ibv_async_event> taken = context->device().GetAsyncEvent();
    if (!taken.ok()) continue;
    *event = *taken;
    preload::Translate(*event);
    return 0;
  } while (preload::AwaitReadable(visible->async_fd));
  return -1;
}

void ibv_ack_async_event(ibv_async_event* event) {
  ibv_async_event inner = *event;
  // All members of the union are pointers.
  const void* handle = event->element.qp;
  if (auto* cq = preload::Alive<preload::Cq>(handle); cq != nullptr) {
    inner.element.cq = cq->inner;
    preload::Acknowledge(*cq, cq->context, inner);
  } else if (auto* srq = preload::Alive<preload::Srq>(handle); srq != nullptr) {
    inner.element.srq = srq->inner;
    preload::Acknowledge(*srq, srq->context, inner);
  } else if (auto* qp = preload::Alive<preload::Qp>(handle); qp != nullptr) {
    inner.element.qp = qp->inner;
    preload::Acknowledge(*qp, qp->qp_base.context, inner);
  } else {
    preload::CallRealVoid(&::ibv_ack_async_event, "ibv_ack_async_event", event);
  }
}

}  // extern "C"
