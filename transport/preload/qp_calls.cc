// Queue pairs: creating, connecting and destroying them, and ibv_post_send.

#include <infiniband/verbs.h>

#include <cerrno>
#include <memory>

#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/preload/calls.h"
#include "verbena/transport/preload/context.h"
#include "verbena/transport/preload/real_library.h"

namespace verbena::internal::preload {
namespace {

int PostReceive(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  ibv_qp* inner = Unchecked(qp)->inner;
  return inner->context->ops.post_recv(inner, wr, bad_wr);
}

// For a chain with bindings, which name a window and a region of the program's: one by one.
int PostTranslated(ibv_qp* inner, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  for (; wr != nullptr; wr = wr->next) {
    ibv_send_wr translated = *wr;
    translated.next = nullptr;
    int error = 0;
    if (wr->opcode == IBV_WR_BIND_MW) {
      auto* window = Alive<VisibleWindow>(wr->bind_mw.mw);
      auto* region = Alive<VisibleRegion>(wr->bind_mw.bind_info.mr);
      if (window == nullptr || region == nullptr) error = EINVAL;
      translated.bind_mw.mw = window != nullptr ? window->inner : nullptr;
      translated.bind_mw.bind_info.mr = region != nullptr ? region->inner : nullptr;
      // Says nothing about peers; hardware ignores it.
      translated.bind_mw.bind_info.mw_access_flags &= ~unsigned{IBV_ACCESS_LOCAL_WRITE};
    }
    ibv_send_wr* bad = nullptr;
    if (error == 0) error = inner->context->ops.post_send(inner, &translated, &bad);
    if (error == 0) continue;
    if (bad_wr != nullptr) *bad_wr = wr;
    return error;
  }
  return 0;
}

int PostSend(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  ibv_qp* inner = Unchecked(qp)->inner;
  for (const ibv_send_wr* each = wr; each != nullptr; each = each->next) {
    if (each->opcode == IBV_WR_BIND_MW) return PostTranslated(inner, wr, bad_wr);
  }
  return inner->context->ops.post_send(inner, wr, bad_wr);
}

// The same with the device's own CQs and SRQ. EINVAL for those of others.
int Translate(const ibv_context* visible, const ibv_qp_init_attr& init, ibv_qp_init_attr& inner) {
  auto* send_cq = Alive<VisibleCq>(init.send_cq);
  auto* receive_cq = Alive<VisibleCq>(init.recv_cq);
  auto* srq = init.srq != nullptr ? Alive<VisibleSrq>(init.srq) : nullptr;
  if (send_cq == nullptr || receive_cq == nullptr || (init.srq != nullptr && srq == nullptr) ||
      send_cq->context != visible || receive_cq->context != visible) {
    return EINVAL;
  }
  inner = init;
  inner.send_cq = send_cq->inner;
  inner.recv_cq = receive_cq->inner;
  inner.srq = srq != nullptr ? srq->inner : nullptr;
  return 0;
}

// Null, and errno set, for what the device refuses. Updates `init.cap`.
VisibleQp* CreateQp(VisibleDomain& domain, ibv_qp_init_attr& init) {
  if (init.qp_type != IBV_QPT_RC) {
    Refuse(init.qp_type == IBV_QPT_UD
               ? "queue pairs of type UD are not supported: only reliable connected ones (RC)"
               : "only reliable connected queue pairs (RC) are supported");
    return nullptr;
  }
  ibv_qp_init_attr inner_init;
  if (Translate(domain.context, init, inner_init) != 0) {
    SetErrno(EINVAL);
    return nullptr;
  }
  auto qp = std::make_unique<VisibleQp>();
  inner_init.qp_context = qp.get();
  Context& context = *Context::From(domain.context);
  absl::StatusOr<ibv_qp*> inner = context.device().CreateQp(domain.inner, inner_init);
  if (!inner.ok()) {
    SetErrno(inner.status());
    return nullptr;
  }
  init.cap = inner_init.cap;
  ibv_qp& visible = qp->qp_base;
  visible.context = domain.context;
  visible.qp_context = init.qp_context;
  visible.pd = &domain;
  visible.send_cq = init.send_cq;
  visible.recv_cq = init.recv_cq;
  visible.srq = init.srq;
  visible.handle = (*inner)->handle;
  visible.qp_num = (*inner)->qp_num;
  visible.state = (*inner)->state;
  visible.qp_type = init.qp_type;
  pthread_mutex_init(&visible.mutex, nullptr);
  pthread_cond_init(&visible.cond, nullptr);
  qp->inner = *inner;
  qp->init = init;
  Registry::Get().Add(Kind::kQp, &visible, qp.get(), &context);
  return qp.release();
}

ibv_qp* CreateQpEx(ibv_context* visible, ibv_qp_init_attr_ex* init) {
  constexpr uint32_t kKnown =
      IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  constexpr uint64_t kOperations = (IBV_QP_EX_WITH_SEND_WITH_INV << 1) - 1;
  if (init == nullptr) {
    SetErrno(EINVAL);
    return nullptr;
  }
  const bool extended = (init->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
  const bool flags_given = (init->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0;
  if ((init->comp_mask & ~kKnown) != 0 || (flags_given && init->create_flags != 0) ||
      (extended && (init->send_ops_flags & ~kOperations) != 0)) {
    SetErrno(EOPNOTSUPP);
    return nullptr;
  }
  auto* domain =
      (init->comp_mask & IBV_QP_INIT_ATTR_PD) != 0 ? Alive<VisibleDomain>(init->pd) : nullptr;
  if (domain == nullptr || domain->context != visible) {
    SetErrno(EINVAL);
    return nullptr;
  }
  // Both structs begin alike.
  ibv_qp_init_attr plain{.qp_context = init->qp_context,
                         .send_cq = init->send_cq,
                         .recv_cq = init->recv_cq,
                         .srq = init->srq,
                         .cap = init->cap,
                         .qp_type = init->qp_type,
                         .sq_sig_all = init->sq_sig_all};
  VisibleQp* qp = CreateQp(*domain, plain);
  if (qp == nullptr) return nullptr;
  init->cap = plain.cap;
  if (extended) FillExtendedQp(*qp);
  return &qp->qp_base;
}

}  // namespace

absl::Status DestroyQp(VisibleQp& qp) {
  Context& context = *Context::From(qp.qp_base.context);
  VERBENA_RETURN_IF_ERROR(context.device().DestroyQp(qp.inner));
  context.events().Forget(&qp.qp_base);
  pthread_mutex_destroy(&qp.qp_base.mutex);
  pthread_cond_destroy(&qp.qp_base.cond);
  return absl::OkStatus();
}

void FillQpCalls(verbs_context& context) {
  context.context.ops.post_send = PostSend;
  context.context.ops.post_recv = PostReceive;
  context.create_qp_ex = CreateQpEx;
}

}  // namespace verbena::internal::preload

namespace preload = verbena::internal::preload;

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  auto* domain = preload::Alive<preload::VisibleDomain>(pd);
  if (domain == nullptr) {
    return preload::CallReal(&::ibv_create_qp, "ibv_create_qp", nullptr, pd, init);
  }
  if (init == nullptr) {
    preload::SetErrno(EINVAL);
    return nullptr;
  }
  preload::VisibleQp* qp = preload::CreateQp(*domain, *init);
  return qp != nullptr ? &qp->qp_base : nullptr;
}

int ibv_modify_qp(ibv_qp* handle, ibv_qp_attr* attributes, int mask) {
  auto* qp = preload::Alive<preload::VisibleQp>(handle);
  if (qp == nullptr) {
    return preload::CallReal(&::ibv_modify_qp, "ibv_modify_qp", EINVAL, handle, attributes, mask);
  }
  if (attributes == nullptr) return preload::SetErrno(EINVAL);
  preload::Context& context = *preload::Context::From(handle->context);
  ibv_qp_attr resolved = *attributes;
  if ((mask & IBV_QP_AV) != 0) resolved.ah_attr = context.shared().Resolve(attributes->ah_attr);
  const absl::Status status = context.device().ModifyQp(qp->inner, resolved, mask);
  if (!status.ok()) return preload::SetErrno(status);
  if ((mask & IBV_QP_AV) != 0) qp->address = attributes->ah_attr;
  if ((mask & IBV_QP_STATE) != 0) handle->state = attributes->qp_state;
  return 0;
}

int ibv_query_qp(ibv_qp* handle, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* init) {
  auto* qp = preload::Alive<preload::VisibleQp>(handle);
  if (qp == nullptr) {
    return preload::CallReal(&::ibv_query_qp, "ibv_query_qp", EINVAL, handle, attributes, mask,
                             init);
  }
  if (attributes == nullptr || init == nullptr) return preload::SetErrno(EINVAL);
  absl::StatusOr<ibv_qp_attr> answer =
      preload::Context::From(handle->context)->device().QueryQp(qp->inner, mask);
  if (!answer.ok()) return preload::SetErrno(answer.status());
  *attributes = *answer;
  attributes->ah_attr = qp->address;
  handle->state = answer->qp_state;
  *init = qp->init;
  return 0;
}

int ibv_destroy_qp(ibv_qp* handle) {
  if (preload::Alive<preload::VisibleQp>(handle) == nullptr) {
    return preload::CallReal(&::ibv_destroy_qp, "ibv_destroy_qp", EINVAL, handle);
  }
  return preload::DestroyObject<preload::VisibleQp>(handle, preload::DestroyQp);
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* handle) {
  auto* qp = preload::Alive<preload::VisibleQp>(handle);
  if (qp == nullptr) {
    return preload::CallReal(&::ibv_qp_to_qp_ex, "ibv_qp_to_qp_ex", nullptr, handle);
  }
  return qp->extended ? qp : nullptr;
}

// A copy by the processor may store the end of a range before its start.
int ibv_query_qp_data_in_order(ibv_qp* handle, ibv_wr_opcode opcode, uint32_t flags) {
  if (preload::Alive<preload::VisibleQp>(handle) != nullptr) return 0;
  return preload::CallReal(&::ibv_query_qp_data_in_order, "ibv_query_qp_data_in_order", 0, handle,
                           opcode, flags);
}

}  // extern "C"
