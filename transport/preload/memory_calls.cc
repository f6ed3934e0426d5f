// Protection domains, memory regions and memory windows.

#include <infiniband/verbs.h>

#include <cerrno>
#include <memory>

#include "verbena/transport/base/check.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/preload/context.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace verbena::internal::preload {
namespace {

// A program may set flags of this range on any device: they are hints.
constexpr int kHints = static_cast<int>(IBV_ACCESS_OPTIONAL_RANGE);

ibv_mr* Register(VisibleDomain& domain, void* address, size_t bytes, uint64_t iova, int access) {
  if (iova != reinterpret_cast<uint64_t>(address)) {
    Refuse("a region whose peers address it by other numbers (iova) is not supported");
    return nullptr;
  }
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) {
    SetErrno(EOPNOTSUPP);
    return nullptr;
  }
  Context& context = *Context::From(domain.context);
  absl::StatusOr<ibv_mr*> inner =
      context.device().RegMr(domain.inner, address, bytes, access & ~kHints);
  if (!inner.ok()) {
    SetErrno(inner.status());
    return nullptr;
  }
  auto* region = new VisibleRegion;
  static_cast<ibv_mr&>(*region) = **inner;
  region->context = domain.context;
  region->pd = &domain;
  region->inner = *inner;
  region->access = access;
  Registry::Get().Add(Kind::kRegion, region, region, &context);
  return region;
}

// An enum ibv_rereg_mr_err_code, or 0. The keys stay.
int Reregister(VisibleRegion& region, int flags, VisibleDomain& domain, void* address, size_t bytes,
               int access) {
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) == 0) {
    address = region.addr;
    bytes = region.length;
  }
  if ((flags & IBV_REREG_MR_CHANGE_ACCESS) == 0) access = region.access;
  SoftDevice& device = Context::From(region.context)->device();
  const absl::Status status =
      device.ReregMr(region.inner, domain.inner, address, bytes, access & ~kHints);
  if (!status.ok()) {
    SetErrno(status);
    return IBV_REREG_MR_ERR_INPUT;
  }
  region.pd = &domain;
  region.addr = address;
  region.length = bytes;
  region.access = access;
  return 0;
}

ibv_mw* AllocMw(ibv_pd* pd, ibv_mw_type type) {
  auto* domain = Alive<VisibleDomain>(pd);
  if (domain == nullptr) {
    SetErrno(EINVAL);
    return nullptr;
  }
  if (type != IBV_MW_TYPE_2) {
    Refuse("memory windows of type 1 are not supported, those of type 2 are");
    return nullptr;
  }
  Context& context = *Context::From(domain->context);
  absl::StatusOr<ibv_mw*> inner = context.device().AllocMw(domain->inner);
  if (!inner.ok()) {
    SetErrno(inner.status());
    return nullptr;
  }
  auto* window = new VisibleWindow;
  static_cast<ibv_mw&>(*window) = **inner;
  window->context = domain->context;
  window->pd = domain;
  window->inner = *inner;
  Registry::Get().Add(Kind::kWindow, window, window, &context);
  return window;
}

int DeallocMw(ibv_mw* mw) {
  return DestroyObject<VisibleWindow>(mw, [](VisibleWindow& window) {
    return Context::From(window.context)->device().DeallocMw(window.inner);
  });
}

int BindMw(ibv_qp*, ibv_mw*, ibv_mw_bind*) {
  return Refuse("memory windows of type 1 are not supported, those of type 2 are");
}

ibv_td* AllocTd(ibv_context* visible, ibv_td_init_attr* attributes) {
  auto* context = Alive<Context>(visible);
  if (context == nullptr || attributes == nullptr || attributes->comp_mask != 0) {
    SetErrno(context == nullptr || attributes == nullptr ? EINVAL : EOPNOTSUPP);
    return nullptr;
  }
  auto* thread = new VisibleThreadDomain;
  thread->context = visible;
  Registry::Get().Add(Kind::kThreadDomain, thread, thread, context);
  return thread;
}

int DeallocTd(ibv_td* td) {
  return DestroyObject<VisibleThreadDomain>(td, [](VisibleThreadDomain& thread) {
    return thread.users == 0 ? absl::OkStatus() : ErrnoStatus(EBUSY, "ibv_dealloc_td");
  });
}

// The allocators are not called: the device has no memory that a program could provide.
ibv_pd* AllocParentDomain(ibv_context* visible, ibv_parent_domain_init_attr* attributes) {
  constexpr uint32_t kKnown =
      IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  auto* original = attributes != nullptr ? Alive<VisibleDomain>(attributes->pd) : nullptr;
  if (original == nullptr || original->context != visible || original->original != nullptr) {
    SetErrno(EINVAL);
    return nullptr;
  }
  if ((attributes->comp_mask & ~kKnown) != 0) {
    SetErrno(EOPNOTSUPP);
    return nullptr;
  }
  auto* domain = new VisibleDomain;
  static_cast<ibv_pd&>(*domain) = *original;
  domain->inner = original->inner;
  domain->original = original;
  domain->thread = attributes->td != nullptr ? Alive<VisibleThreadDomain>(attributes->td) : nullptr;
  ++original->users;
  if (domain->thread != nullptr) ++domain->thread->users;
  Registry::Get().Add(Kind::kDomain, domain, domain, Context::From(visible));
  return domain;
}

}  // namespace

absl::Status DestroyDomain(VisibleDomain& domain) {
  if (domain.users != 0) return ErrnoStatus(EBUSY, "ibv_dealloc_pd: parent domains use it");
  if (domain.original == nullptr) {
    return Context::From(domain.context)->device().DeallocPd(domain.inner);
  }
  int left = --domain.original->users;
  VERBENA_CHECK(left >= 0) << "a domain has " << left << " parents";
  if (domain.thread != nullptr) {
    left = --domain.thread->users;
    VERBENA_CHECK(left >= 0) << "a thread domain has " << left << " users";
  }
  return absl::OkStatus();
}

void FillMemoryCalls(verbs_context& context) {
  context.context.ops.alloc_mw = AllocMw;
  context.context.ops.dealloc_mw = DeallocMw;
  context.context.ops.bind_mw = BindMw;
  context.alloc_td = AllocTd;
  context.dealloc_td = DeallocTd;
  context.alloc_parent_domain = AllocParentDomain;
}

}  // namespace verbena::internal::preload

namespace preload = verbena::internal::preload;

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* visible) {
  auto* context = preload::Alive<preload::Context>(visible);
  if (context == nullptr) {
    return preload::CallReal(&::ibv_alloc_pd, "ibv_alloc_pd", nullptr, visible);
  }
  absl::StatusOr<ibv_pd*> inner = context->device().AllocPd();
  if (!inner.ok()) {
    preload::SetErrno(inner.status());
    return nullptr;
  }
  auto* domain = new preload::VisibleDomain;
  static_cast<ibv_pd&>(*domain) = **inner;
  domain->context = visible;
  domain->inner = *inner;
  preload::Registry::Get().Add(preload::Kind::kDomain, domain, domain, context);
  return domain;
}

int ibv_dealloc_pd(ibv_pd* pd) {
  if (preload::Alive<preload::VisibleDomain>(pd) == nullptr) {
    return preload::CallReal(&::ibv_dealloc_pd, "ibv_dealloc_pd", EINVAL, pd);
  }
  return preload::DestroyObject<preload::VisibleDomain>(pd, preload::DestroyDomain);
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t bytes, int access) {
  auto* domain = preload::Alive<preload::VisibleDomain>(pd);
  if (domain == nullptr) {
    return preload::CallReal(&::ibv_reg_mr, "ibv_reg_mr", nullptr, pd, address, bytes, access);
  }
  return preload::Register(*domain, address, bytes, reinterpret_cast<uint64_t>(address), access);
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t bytes, uint64_t iova, int access) {
  auto* domain = preload::Alive<preload::VisibleDomain>(pd);
  if (domain == nullptr) {
    return preload::CallReal(&::ibv_reg_mr_iova, "ibv_reg_mr_iova", nullptr, pd, address, bytes,
                             iova, access);
  }
  return preload::Register(*domain, address, bytes, iova, access);
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t bytes, uint64_t iova, unsigned access) {
  auto* domain = preload::Alive<preload::VisibleDomain>(pd);
  if (domain == nullptr) {
    return preload::CallReal(&::ibv_reg_mr_iova2, "ibv_reg_mr_iova2", nullptr, pd, address, bytes,
                             iova, access);
  }
  return preload::Register(*domain, address, bytes, iova, static_cast<int>(access));
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                          int access) {
  if (preload::Alive<preload::VisibleDomain>(pd) == nullptr) {
    return preload::CallReal(&::ibv_reg_dmabuf_mr, "ibv_reg_dmabuf_mr", nullptr, pd, offset, bytes,
                             iova, fd, access);
  }
  preload::Refuse("registering a dmabuf is not supported");
  return nullptr;
}

int ibv_dereg_mr(ibv_mr* mr) {
  if (preload::Alive<preload::VisibleRegion>(mr) == nullptr) {
    return preload::CallReal(&::ibv_dereg_mr, "ibv_dereg_mr", EINVAL, mr);
  }
  return preload::DestroyObject<preload::VisibleRegion>(mr, [](preload::VisibleRegion& region) {
    return preload::Context::From(region.context)->device().DeregMr(region.inner);
  });
}

int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, size_t bytes, int access) {
  auto* region = preload::Alive<preload::VisibleRegion>(mr);
  if (region == nullptr) {
    return preload::CallReal(&::ibv_rereg_mr, "ibv_rereg_mr", IBV_REREG_MR_ERR_INPUT, mr, flags, pd,
                             address, bytes, access);
  }
  const bool changes_domain = (flags & IBV_REREG_MR_CHANGE_PD) != 0;
  auto* domain = changes_domain ? preload::Alive<preload::VisibleDomain>(pd)
                                : preload::Alive<preload::VisibleDomain>(region->pd);
  const bool known = flags != 0 && (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) == 0;
  if (!known || domain == nullptr || domain->context != region->context) {
    preload::SetErrno(EINVAL);
    return IBV_REREG_MR_ERR_INPUT;
  }
  return preload::Reregister(*region, flags, *domain, address, bytes, access);
}

}  // extern "C"
