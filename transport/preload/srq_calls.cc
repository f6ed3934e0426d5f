// Shared receive queues.

#include <infiniband/verbs.h>

#include <cerrno>
#include <memory>

#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/preload/calls.h"
#include "verbena/transport/preload/context.h"
#include "verbena/transport/preload/real_library.h"

namespace verbena::internal::preload {
namespace {

int PostSrqReceive(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  ibv_srq* inner = Unchecked(srq)->inner;
  return inner->context->ops.post_srq_recv(inner, wr, bad_wr);
}

ibv_srq* CreateSrq(VisibleDomain& domain, void* srq_context, ibv_srq_attr& attributes) {
  Context& context = *Context::From(domain.context);
  auto srq = std::make_unique<VisibleSrq>();
  const ibv_srq_init_attr init{.srq_context = srq.get(), .attr = attributes};
  absl::StatusOr<ibv_srq*> inner = context.device().CreateSrq(domain.inner, init);
  if (!inner.ok()) {
    SetErrno(inner.status());
    return nullptr;
  }
  srq->context = domain.context;
  srq->srq_context = srq_context;
  srq->pd = &domain;
  srq->handle = (*inner)->handle;
  pthread_mutex_init(&srq->mutex, nullptr);
  pthread_cond_init(&srq->cond, nullptr);
  srq->inner = *inner;
  if (auto got = context.device().QuerySrq(*inner); got.ok()) attributes = *got;
  Registry::Get().Add(Kind::kSrq, srq.get(), srq.get(), &context);
  return srq.release();
}

ibv_srq* CreateSrqEx(ibv_context* visible, ibv_srq_init_attr_ex* init) {
  constexpr uint32_t kKnown = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  if (init == nullptr) {
    SetErrno(EINVAL);
    return nullptr;
  }
  const bool typed = (init->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0;
  if ((init->comp_mask & ~kKnown) != 0 || (typed && init->srq_type != IBV_SRQT_BASIC)) {
    SetErrno(EOPNOTSUPP);
    return nullptr;
  }
  auto* domain =
      (init->comp_mask & IBV_SRQ_INIT_ATTR_PD) != 0 ? Alive<VisibleDomain>(init->pd) : nullptr;
  if (domain == nullptr || domain->context != visible) {
    SetErrno(EINVAL);
    return nullptr;
  }
  return CreateSrq(*domain, init->srq_context, init->attr);
}

}  // namespace

absl::Status DestroySrq(VisibleSrq& srq) {
  Context& context = *Context::From(srq.context);
  VERBENA_RETURN_IF_ERROR(context.device().DestroySrq(srq.inner));
  context.events().Forget(&srq);
  pthread_mutex_destroy(&srq.mutex);
  pthread_cond_destroy(&srq.cond);
  return absl::OkStatus();
}

void FillSrqCalls(verbs_context& context) {
  context.context.ops.post_srq_recv = PostSrqReceive;
  context.create_srq_ex = CreateSrqEx;
}

}  // namespace verbena::internal::preload

namespace preload = verbena::internal::preload;

extern "C" {

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  auto* domain = preload::Alive<preload::VisibleDomain>(pd);
  if (domain == nullptr) {
    return preload::CallReal(&::ibv_create_srq, "ibv_create_srq", nullptr, pd, init);
  }
  if (init == nullptr) {
    preload::SetErrno(EINVAL);
    return nullptr;
  }
  return preload::CreateSrq(*domain, init->srq_context, init->attr);
}

int ibv_modify_srq(ibv_srq* handle, ibv_srq_attr* attributes, int mask) {
  auto* srq = preload::Alive<preload::VisibleSrq>(handle);
  if (srq == nullptr) {
    return preload::CallReal(&::ibv_modify_srq, "ibv_modify_srq", EINVAL, handle, attributes, mask);
  }
  if (attributes == nullptr) return preload::SetErrno(EINVAL);
  return preload::SetErrno(
      preload::Context::From(srq->context)->device().ModifySrq(srq->inner, *attributes, mask));
}

int ibv_query_srq(ibv_srq* handle, ibv_srq_attr* attributes) {
  auto* srq = preload::Alive<preload::VisibleSrq>(handle);
  if (srq == nullptr) {
    return preload::CallReal(&::ibv_query_srq, "ibv_query_srq", EINVAL, handle, attributes);
  }
  if (attributes == nullptr) return preload::SetErrno(EINVAL);
  absl::StatusOr<ibv_srq_attr> answer =
      preload::Context::From(srq->context)->device().QuerySrq(srq->inner);
  if (!answer.ok()) return preload::SetErrno(answer.status());
  *attributes = *answer;
  return 0;
}

int ibv_destroy_srq(ibv_srq* handle) {
  if (preload::Alive<preload::VisibleSrq>(handle) == nullptr) {
    return preload::CallReal(&::ibv_destroy_srq, "ibv_destroy_srq", EINVAL, handle);
  }
  return preload::DestroyObject<preload::VisibleSrq>(handle, preload::DestroySrq);
}

}  // extern "C"
