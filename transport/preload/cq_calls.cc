#include <infiniband/verbs.h>

#include <cerrno>
#include <climits>
#include <memory>

#include "verbena/transport/base/status.h"
#include "verbena/transport/preload/context.h"

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
  if (cq == nullptr) return nullptr;
  FillExtendedCq(*cq);
  if (flags_given && (init->flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0) {
    context->device().IgnoreOverrun(cq->inner);
  }
  return cq;
}

VisibleCq& From(ibv_cq_ex* cq) { return *static_cast<VisibleCq*>(cq); }

int NextPoll(ibv_cq_ex* handle) {
  VisibleCq& cq = From(handle);
  const int polled = cq.inner->context->ops.poll_cq(cq.inner, 1, &cq.current);
  if (polled == 0) return ENOENT;
  if (polled < 0) return EIO;
  cq.status = cq.current.status;
  cq.wr_id = cq.current.wr_id;
  return 0;
}

int StartPoll(ibv_cq_ex* handle, ibv_poll_cq_attr* attributes) {
  if (attributes != nullptr && attributes->comp_mask != 0) return EINVAL;
  VisibleCq& cq = From(handle);
  cq.polling.lock();
  const int error = NextPoll(handle);
  // The program then calls no EndPoll().
  if (error != 0) cq.polling.unlock();
  return error;
}

void EndPoll(ibv_cq_ex* handle) { From(handle).polling.unlock(); }

}  // namespace

// Completion channels, completion queues and completion events.

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

// ibv_cq_ex: completions read one by one, field by field.
//
// Each is polled when the program asks for it: so nothing waits where arming the CQ would not see
// it, and ibv_poll_cq may be used on the same CQ.

void FillExtendedCq(VisibleCq& cq) {
  cq.start_poll = StartPoll;
  cq.next_poll = NextPoll;
  cq.end_poll = EndPoll;
  cq.read_opcode = [](ibv_cq_ex* handle) { return From(handle).current.opcode; };
  cq.read_vendor_err = [](ibv_cq_ex* handle) { return From(handle).current.vendor_err; };
  cq.read_byte_len = [](ibv_cq_ex* handle) { return From(handle).current.byte_len; };
  // Shares a field with the key that a peer's SEND_WITH_INV invalidated.
  cq.read_imm_data = [](ibv_cq_ex* handle) { return From(handle).current.imm_data; };
  cq.read_qp_num = [](ibv_cq_ex* handle) { return From(handle).current.qp_num; };
  cq.read_src_qp = [](ibv_cq_ex* handle) { return From(handle).current.src_qp; };
  cq.read_wc_flags = [](ibv_cq_ex* handle) { return From(handle).current.wc_flags; };
  cq.read_slid = [](ibv_cq_ex* handle) { return uint32_t{From(handle).current.slid}; };
  cq.read_sl = [](ibv_cq_ex* handle) { return From(handle).current.sl; };
  cq.read_dlid_path_bits = [](ibv_cq_ex* handle) { return From(handle).current.dlid_path_bits; };
  // Only asked for by programs whose CQ was refused.
  cq.read_completion_ts = [](ibv_cq_ex*) { return uint64_t{0}; };
  cq.read_completion_wallclock_ns = [](ibv_cq_ex*) { return uint64_t{0}; };
  cq.read_cvlan = [](ibv_cq_ex*) { return uint16_t{0}; };
  cq.read_flow_tag = [](ibv_cq_ex*) { return uint32_t{0}; };
  cq.read_tm_info = [](ibv_cq_ex*, ibv_wc_tm_info* info) { *info = {}; };
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
