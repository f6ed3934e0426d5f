// ibv_qp_ex: work requests that are built call by call, between ibv_wr_start and ibv_wr_complete.
//
// They are gathered as a chain for ibv_post_send. A mistake is remembered, and fails the whole
// batch: then nothing of it is posted. The program's inline data is copied at once.

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstring>

#include "verbena/transport/preload/calls.h"

namespace verbena::internal::preload {
namespace {

VisibleQp& From(ibv_qp_ex* qp) { return *static_cast<VisibleQp*>(qp); }

ibv_send_wr& AddWork(ibv_qp_ex* handle, ibv_wr_opcode opcode) {
  PostBuilder& builder = From(handle).builder;
  PostBuilder::Work& work = builder.works.emplace_back();
  work.wr = {};
  work.wr.wr_id = handle->wr_id;
  work.wr.opcode = opcode;
  work.wr.send_flags = handle->wr_flags;
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

}  // namespace

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

}  // namespace verbena::internal::preload
