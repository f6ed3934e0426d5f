#include <infiniband/verbs.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/preload/context.h"

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

// Sets `inner` to `init` with the device's own CQs and SRQ. EINVAL for those of another device.
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

VisibleQp& From(ibv_qp_ex* qp) { return *static_cast<VisibleQp*>(qp); }

ibv_send_wr& AddWork(ibv_qp_ex* handle, ibv_wr_opcode opcode) {
  PostBuilder& builder = From(handle).builder;
  PostBuilder::Work& work = builder.works.emplace_back();
  work.wr = {};
  work.wr.wr_id = handle->wr_id;
  work.wr.opcode = opcode;
  // The calls that set the data say whether they are inline, and Chain() believes this flag.
  work.wr.send_flags = handle->wr_flags & ~unsigned{IBV_SEND_INLINE};
  work.first_sge = builder.sges.size();
  return work.wr;
}

void AddAccess(ibv_qp_ex* handle, ibv_wr_opcode opcode, uint32_t rkey, uint64_t address) {
  ibv_send_wr& wr = AddWork(handle, opcode);
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = rkey;
}

void AddAtomic(ibv_qp_ex* handle, ibv_wr_opcode opcode, uint32_t rkey, uint64_t address,
               uint64_t compare_add, uint64_t swap) {
  ibv_send_wr& wr = AddWork(handle, opcode);
  wr.wr.atomic.remote_addr = address;
  wr.wr.atomic.rkey = rkey;
  wr.wr.atomic.compare_add = compare_add;
  wr.wr.atomic.swap = swap;
}

void AddBinding(ibv_qp_ex* handle, ibv_mw* mw, uint32_t rkey, const ibv_mw_bind_info* info) {
  ibv_send_wr& wr = AddWork(handle, IBV_WR_BIND_MW);
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = rkey;
  wr.bind_mw.bind_info = *info;
}

// The work that a call concerns; null, and the batch fails, if it has none or has its data already.
PostBuilder::Work* LastWork(PostBuilder& builder) {
  if (!builder.works.empty() && builder.works.back().wr.num_sge == 0) return &builder.works.back();
  builder.error = EINVAL;
  return nullptr;
}

void SetSges(ibv_qp_ex* handle, size_t count, const ibv_sge* sges) {
  VisibleQp& qp = From(handle);
  PostBuilder::Work* work = LastWork(qp.builder);
  if (work == nullptr) return;
  if (count > qp.init.cap.max_send_sge) {
    qp.builder.error = EINVAL;
    return;
  }
  qp.builder.sges.insert(qp.builder.sges.end(), sges, sges + count);
  work->wr.num_sge = static_cast<int>(count);
}

void SetInline(ibv_qp_ex* handle, size_t count, const ibv_data_buf* buffers) {
  VisibleQp& qp = From(handle);
  PostBuilder& builder = qp.builder;
  PostBuilder::Work* work = LastWork(builder);
  if (work == nullptr) return;
  const size_t start = builder.bytes.size();
  for (size_t i = 0; i < count; ++i) {
    const size_t taken = builder.bytes.size() - start;
    if (buffers[i].length > qp.init.cap.max_inline_data - taken) {
      builder.error = EINVAL;
      return;
    }
    const auto* from = static_cast<const std::byte*>(buffers[i].addr);
    builder.bytes.insert(builder.bytes.end(), from, from + buffers[i].length);
  }
  work->wr.send_flags |= IBV_SEND_INLINE;
  work->wr.num_sge = 1;
  builder.sges.push_back(
      {.addr = start, .length = static_cast<uint32_t>(builder.bytes.size() - start), .lkey = 0});
}

void Clear(PostBuilder& builder) {
  builder.works.clear();
  builder.sges.clear();
  builder.bytes.clear();
  builder.error = 0;
}

void Start(ibv_qp_ex* handle) { From(handle).builder.mutex.lock(); }

void Abort(ibv_qp_ex* handle) {
  PostBuilder& builder = From(handle).builder;
  Clear(builder);
  builder.mutex.unlock();
}

// The vectors no longer move: the chain may point into them.
ibv_send_wr* Chain(PostBuilder& builder) {
  for (size_t i = 0; i < builder.works.size(); ++i) {
    PostBuilder::Work& work = builder.works[i];
    VERBENA_DCHECK(work.first_sge <= builder.sges.size() &&
                   static_cast<size_t>(work.wr.num_sge) <= builder.sges.size() - work.first_sge)
        << work.first_sge << " and " << work.wr.num_sge << " of " << builder.sges.size();
    work.wr.next = i + 1 < builder.works.size() ? &builder.works[i + 1].wr : nullptr;
    work.wr.sg_list = builder.sges.data() + work.first_sge;
    if ((work.wr.send_flags & IBV_SEND_INLINE) != 0 && work.wr.num_sge == 1) {
      work.wr.sg_list->addr += reinterpret_cast<uint64_t>(builder.bytes.data());
    }
  }
  return builder.works.empty() ? nullptr : &builder.works.front().wr;
}

int Complete(ibv_qp_ex* handle) {
  PostBuilder& builder = From(handle).builder;
  int error = builder.error;
  const bool sound = error == 0;
  if (ibv_send_wr* first = Chain(builder); sound && first != nullptr) {
    ibv_send_wr* bad = nullptr;
    error = handle->qp_base.context->ops.post_send(&handle->qp_base, first, &bad);
  }
  Clear(builder);
  builder.mutex.unlock();
  return error;
}

// For what only other kinds of queue pairs have.
void Unsupported(ibv_qp_ex* handle) { From(handle).builder.error = EOPNOTSUPP; }

void FillOperations(ibv_qp_ex& qp) {
  qp.wr_send = [](ibv_qp_ex* handle) { AddWork(handle, IBV_WR_SEND); };
  qp.wr_send_imm = [](ibv_qp_ex* handle, __be32 immediate) {
    AddWork(handle, IBV_WR_SEND_WITH_IMM).imm_data = immediate;
  };
  qp.wr_send_inv = [](ibv_qp_ex* handle, uint32_t rkey) {
    AddWork(handle, IBV_WR_SEND_WITH_INV).invalidate_rkey = rkey;
  };
  qp.wr_rdma_read = [](ibv_qp_ex* handle, uint32_t rkey, uint64_t address) {
    AddAccess(handle, IBV_WR_RDMA_READ, rkey, address);
  };
  qp.wr_rdma_write = [](ibv_qp_ex* handle, uint32_t rkey, uint64_t address) {
    AddAccess(handle, IBV_WR_RDMA_WRITE, rkey, address);
  };
  qp.wr_rdma_write_imm = [](ibv_qp_ex* handle, uint32_t rkey, uint64_t address, __be32 immediate) {
    AddAccess(handle, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address);
    From(handle).builder.works.back().wr.imm_data = immediate;
  };
  qp.wr_atomic_cmp_swp = [](ibv_qp_ex* handle, uint32_t rkey, uint64_t address, uint64_t compare,
                            uint64_t swap) {
    AddAtomic(handle, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, address, compare, swap);
  };
  qp.wr_atomic_fetch_add = [](ibv_qp_ex* handle, uint32_t rkey, uint64_t address, uint64_t add) {
    AddAtomic(handle, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, address, add, 0);
  };
  qp.wr_bind_mw = AddBinding;
  qp.wr_local_inv = [](ibv_qp_ex* handle, uint32_t rkey) {
    AddWork(handle, IBV_WR_LOCAL_INV).invalidate_rkey = rkey;
  };
}

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

// Queue pairs: creating, connecting and destroying them, and ibv_post_send.

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

// ibv_qp_ex: work requests that are built call by call, between ibv_wr_start and ibv_wr_complete.
//
// They are gathered as a chain for ibv_post_send. A mistake is remembered, and fails the whole
// batch: then nothing of it is posted. The program's inline data is copied at once.

void FillExtendedQp(VisibleQp& qp) {
  qp.extended = true;
  FillOperations(qp);
  qp.wr_start = Start;
  qp.wr_complete = Complete;
  qp.wr_abort = Abort;
  qp.wr_set_sge = [](ibv_qp_ex* handle, uint32_t lkey, uint64_t address, uint32_t length) {
    const ibv_sge sge{.addr = address, .length = length, .lkey = lkey};
    SetSges(handle, 1, &sge);
  };
  qp.wr_set_sge_list = SetSges;
  qp.wr_set_inline_data = [](ibv_qp_ex* handle, void* address, size_t length) {
    const ibv_data_buf buffer{.addr = address, .length = length};
    SetInline(handle, 1, &buffer);
  };
  qp.wr_set_inline_data_list = SetInline;
  qp.wr_send_tso = [](ibv_qp_ex* handle, void*, uint16_t, uint16_t) { Unsupported(handle); };
  qp.wr_set_ud_addr = [](ibv_qp_ex* handle, ibv_ah*, uint32_t, uint32_t) { Unsupported(handle); };
  qp.wr_set_xrc_srqn = [](ibv_qp_ex* handle, uint32_t) { Unsupported(handle); };
  qp.wr_atomic_write = [](ibv_qp_ex* handle, uint32_t, uint64_t, const void*) {
    Unsupported(handle);
  };
}

// Shared receive queues.

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

// A queue pair that leaves service waits for its peer's copy, so that nothing lands through it
// later, as on hardware. If the peer is frozen, ibv_dereg_mr fails instead.
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
  if ((mask & IBV_QP_STATE) == 0) return 0;
  handle->state = attributes->qp_state;
  if (attributes->qp_state == IBV_QPS_RESET || attributes->qp_state == IBV_QPS_ERR) {
    context.device().AwaitQuiesced(context.device().IdentityOf(qp->inner));
  }
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
  return preload::DestroyObject<preload::VisibleQp>(handle, [](preload::VisibleQp& qp) {
    auto& device = preload::Context::From(qp.qp_base.context)->device();
    const verbena::internal::QpIdentity identity = device.IdentityOf(qp.inner);
    absl::Status status = preload::DestroyQp(qp);
    // As in ibv_modify_qp.
    if (status.ok()) device.AwaitQuiesced(identity);
    return status;
  });
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* handle) {
  auto* qp = preload::Alive<preload::VisibleQp>(handle);
  if (qp == nullptr) {
    return preload::CallReal(&::ibv_qp_to_qp_ex, "ibv_qp_to_qp_ex", nullptr, handle);
  }
  return qp->extended ? qp : nullptr;
}

// Only the last word has its place in the order, and over TCP not even that.
int ibv_query_qp_data_in_order(ibv_qp* handle, ibv_wr_opcode opcode, uint32_t flags) {
  if (preload::Alive<preload::VisibleQp>(handle) != nullptr) return 0;
  return preload::CallReal(&::ibv_query_qp_data_in_order, "ibv_query_qp_data_in_order", 0, handle,
                           opcode, flags);
}

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
