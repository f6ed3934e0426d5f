// Completion channels, completion queues and completion events.

#include <infiniband/verbs.h>

#include <cerrno>
#include <climits>
#include <memory>

#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/preload/calls.h"
#include "verbena/transport/preload/context.h"
#include "verbena/transport/preload/descriptor.h"
#include "verbena/transport/preload/real_library.h"

namespace verbena::internal::preload {
namespace {

int PollCq(ibv_cq* cq, int room, ibv_wc* out) {
  ibv_cq* inner = Unchecked(cq)->inner;
  return inner->context->ops.poll_cq(inner, room, out);
}

int RequestNotification(ibv_cq* cq, int solicited_only) {
  ibv_cq* inner = Unchecked(cq)->inner;
  return inner->context->ops.req_notify_cq(inner, solicited_only);
}

// Null, and errno set, for what the device refuses.
VisibleCq* CreateCq(Context& context, int entries, void* cq_context, ibv_comp_channel* channel,
                    int vector) {
  ibv_context* visible = context.visible();
  auto* events = channel != nullptr ? Alive<VisibleChannel>(channel) : nullptr;
  if (vector < 0 || vector >= visible->num_comp_vectors ||
      (channel != nullptr && (events == nullptr || events->context != visible))) {
    SetErrno(EINVAL);
    return nullptr;
  }
  auto cq = std::make_unique<VisibleCq>();
  absl::StatusOr<ibv_cq*> inner =
      context.device().CreateCq(entries, cq.get(), events != nullptr ? events->inner : nullptr);
  if (!inner.ok()) {
    SetErrno(inner.status());
    return nullptr;
  }
  cq->context = visible;
  cq->channel = channel;
  cq->cq_context = cq_context;
  cq->handle = (*inner)->handle;
  cq->cqe = (*inner)->cqe;
  pthread_mutex_init(&cq->mutex, nullptr);
  pthread_cond_init(&cq->cond, nullptr);
  cq->inner = *inner;
  Registry::Get().Add(Kind::kCq, cq.get(), cq.get(), &context);
  return cq.release();
}

ibv_cq_ex* CreateCqEx(ibv_context* visible, ibv_cq_init_attr_ex* init) {
  auto* context = Alive<Context>(visible);
  if (context == nullptr || init == nullptr || init->cqe > INT_MAX) {
    SetErrno(EINVAL);
    return nullptr;
  }
  constexpr uint32_t kKnownMask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
  constexpr uint32_t kKnownFlags =
      IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  const bool flags_given = (init->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0;
  if ((init->comp_mask & ~kKnownMask) != 0 || (init->wc_flags & ~IBV_WC_STANDARD_FLAGS) != 0 ||
      (flags_given && (init->flags & ~kKnownFlags) != 0)) {
    SetErrno(EOPNOTSUPP);
    return nullptr;
  }
  VisibleCq* cq = CreateCq(*context, static_cast<int>(init->cqe), init->cq_context, init->channel,
                           static_cast<int>(init->comp_vector));
  if (cq != nullptr) FillExtendedCq(*cq);
  return cq;
}

}  // namespace

absl::Status DestroyCq(VisibleCq& cq) {
  Context& context = *Context::From(cq.context);
  VERBENA_RETURN_IF_ERROR(context.device().DestroyCq(cq.inner));
  context.events().Forget(&cq);
  pthread_mutex_destroy(&cq.mutex);
  pthread_cond_destroy(&cq.cond);
  return absl::OkStatus();
}

void FillCqCalls(verbs_context& context) {
  context.context.ops.poll_cq = PollCq;
  context.context.ops.req_notify_cq = RequestNotification;
  context.create_cq_ex = CreateCqEx;
}

}  // namespace verbena::internal::preload

namespace preload = verbena::internal::preload;

extern "C" {

ibv_comp_channel* ibv_create_comp_channel(ibv_context* visible) {
  auto* context = preload::Alive<preload::Context>(visible);
  if (context == nullptr) {
    return preload::CallReal(&::ibv_create_comp_channel, "ibv_create_comp_channel", nullptr,
                             visible);
  }
  absl::StatusOr<ibv_comp_channel*> inner = context->device().CreateCompChannel();
  if (!inner.ok()) {
    preload::SetErrno(inner.status());
    return nullptr;
  }
  auto* channel = new preload::VisibleChannel;
  static_cast<ibv_comp_channel&>(*channel) = **inner;
  channel->context = visible;
  channel->inner = *inner;
  preload::MakeBlocking(channel->fd);
  preload::Registry::Get().Add(preload::Kind::kChannel, channel, channel, context);
  return channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  if (preload::Alive<preload::VisibleChannel>(channel) == nullptr) {
    return preload::CallReal(&::ibv_destroy_comp_channel, "ibv_destroy_comp_channel", EINVAL,
                             channel);
  }
  return preload::DestroyObject<preload::VisibleChannel>(
      channel, [](preload::VisibleChannel& each) {
        return preload::Context::From(each.context)->device().DestroyCompChannel(each.inner);
      });
}

ibv_cq* ibv_create_cq(ibv_context* visible, int entries, void* cq_context,
                      ibv_comp_channel* channel, int vector) {
  auto* context = preload::Alive<preload::Context>(visible);
  if (context == nullptr) {
    return preload::CallReal(&::ibv_create_cq, "ibv_create_cq", nullptr, visible, entries,
                             cq_context, channel, vector);
  }
  preload::VisibleCq* cq = preload::CreateCq(*context, entries, cq_context, channel, vector);
  return cq != nullptr ? cq->handle_of() : nullptr;
}

int ibv_resize_cq(ibv_cq* handle, int entries) {
  auto* cq = preload::Alive<preload::VisibleCq>(handle);
  if (cq == nullptr) {
    return preload::CallReal(&::ibv_resize_cq, "ibv_resize_cq", EINVAL, handle, entries);
  }
  const int error =
      preload::SetErrno(preload::Context::From(cq->context)->device().ResizeCq(cq->inner, entries));
  if (error == 0) cq->cqe = cq->inner->cqe;
  return error;
}

int ibv_destroy_cq(ibv_cq* handle) {
  if (preload::Alive<preload::VisibleCq>(handle) == nullptr) {
    return preload::CallReal(&::ibv_destroy_cq, "ibv_destroy_cq", EINVAL, handle);
  }
  return preload::DestroyObject<preload::VisibleCq>(handle, preload::DestroyCq);
}

int ibv_get_cq_event(ibv_comp_channel* handle, ibv_cq** cq, void** cq_context) {
  auto* channel = preload::Alive<preload::VisibleChannel>(handle);
  if (channel == nullptr) {
    return preload::CallReal(&::ibv_get_cq_event, "ibv_get_cq_event", -1, handle, cq, cq_context);
  }
  verbena::internal::SoftDevice& device = preload::Context::From(channel->context)->device();
  do {
    absl::StatusOr<ibv_cq*> inner = device.GetCqEvent(channel->inner);
    if (!inner.ok()) continue;
    auto* taken = static_cast<preload::VisibleCq*>((*inner)->cq_context);
    *cq = taken->handle_of();
    *cq_context = taken->cq_context;
    return 0;
  } while (preload::AwaitReadable(channel->fd));
  return -1;
}

void ibv_ack_cq_events(ibv_cq* handle, unsigned count) {
  auto* cq = preload::Alive<preload::VisibleCq>(handle);
  if (cq == nullptr) {
    preload::CallRealVoid(&::ibv_ack_cq_events, "ibv_ack_cq_events", handle, count);
    return;
  }
  if (cq->channel == nullptr) return;
  preload::Context::From(cq->context)->device().AckCqEvents(cq->inner, count);
}

}  // extern "C"
