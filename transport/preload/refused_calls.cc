// Calls that the soft device cannot serve: address handles and multicast (of UD), objects that
// another process shares out, and options of connections.

#include <infiniband/verbs.h>

#include <cerrno>

#include "verbena/transport/preload/context.h"
#include "verbena/transport/preload/errors.h"
#include "verbena/transport/preload/objects.h"
#include "verbena/transport/preload/real_library.h"

namespace verbena::internal::preload {
namespace {

constexpr char kNoUd[] =
    "address handles and multicast belong to queue pairs of type UD, which are not supported";

template <typename T>
bool IsOurs(const void* handle) {
  return Alive<T>(handle) != nullptr;
}

}  // namespace
}  // namespace verbena::internal::preload

namespace preload = verbena::internal::preload;

extern "C" {

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attributes) {
  if (!preload::IsOurs<preload::VisibleDomain>(pd)) {
    return preload::CallReal(&::ibv_create_ah, "ibv_create_ah", nullptr, pd, attributes);
  }
  preload::Refuse(preload::kNoUd);
  return nullptr;
}

int ibv_destroy_ah(ibv_ah* ah) {
  return preload::CallReal(&::ibv_destroy_ah, "ibv_destroy_ah", EINVAL, ah);
}

int ibv_init_ah_from_wc(ibv_context* context, uint8_t port, ibv_wc* wc, ibv_grh* grh,
                        ibv_ah_attr* attributes) {
  if (!preload::IsOurs<preload::Context>(context)) {
    return preload::CallReal(&::ibv_init_ah_from_wc, "ibv_init_ah_from_wc", -1, context, port, wc,
                             grh, attributes);
  }
  preload::Refuse(preload::kNoUd);
  return -1;
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, uint8_t port) {
  if (!preload::IsOurs<preload::VisibleDomain>(pd)) {
    return preload::CallReal(&::ibv_create_ah_from_wc, "ibv_create_ah_from_wc", nullptr, pd, wc,
                             grh, port);
  }
  preload::Refuse(preload::kNoUd);
  return nullptr;
}

int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  if (preload::IsOurs<preload::VisibleQp>(qp)) return preload::Refuse(preload::kNoUd);
  return preload::CallReal(&::ibv_attach_mcast, "ibv_attach_mcast", EINVAL, qp, gid, lid);
}

int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  if (preload::IsOurs<preload::VisibleQp>(qp)) return preload::Refuse(preload::kNoUd);
  return preload::CallReal(&::ibv_detach_mcast, "ibv_detach_mcast", EINVAL, qp, gid, lid);
}

int ibv_resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr* attributes, uint8_t* mac,
                                uint16_t* vlan) {
  if (preload::IsOurs<preload::Context>(context)) return preload::SetErrno(EOPNOTSUPP);
  return preload::CallReal(&::ibv_resolve_eth_l2_from_gid, "ibv_resolve_eth_l2_from_gid", EINVAL,
                           context, attributes, mac, vlan);
}

ibv_pd* ibv_import_pd(ibv_context* context, uint32_t handle) {
  if (!preload::IsOurs<preload::Context>(context)) {
    return preload::CallReal(&::ibv_import_pd, "ibv_import_pd", nullptr, context, handle);
  }
  preload::SetErrno(EOPNOTSUPP);
  return nullptr;
}

void ibv_unimport_pd(ibv_pd* pd) {
  if (preload::IsOurs<preload::VisibleDomain>(pd)) return;
  preload::CallRealVoid(&::ibv_unimport_pd, "ibv_unimport_pd", pd);
}

ibv_mr* ibv_import_mr(ibv_pd* pd, uint32_t handle) {
  if (!preload::IsOurs<preload::VisibleDomain>(pd)) {
    return preload::CallReal(&::ibv_import_mr, "ibv_import_mr", nullptr, pd, handle);
  }
  preload::SetErrno(EOPNOTSUPP);
  return nullptr;
}

void ibv_unimport_mr(ibv_mr* mr) {
  if (preload::IsOurs<preload::VisibleRegion>(mr)) return;
  preload::CallRealVoid(&::ibv_unimport_mr, "ibv_unimport_mr", mr);
}

ibv_dm* ibv_import_dm(ibv_context* context, uint32_t handle) {
  if (!preload::IsOurs<preload::Context>(context)) {
    return preload::CallReal(&::ibv_import_dm, "ibv_import_dm", nullptr, context, handle);
  }
  preload::SetErrno(EOPNOTSUPP);
  return nullptr;
}

void ibv_unimport_dm(ibv_dm* dm) {
  preload::CallRealVoid(&::ibv_unimport_dm, "ibv_unimport_dm", dm);
}

int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
  if (preload::IsOurs<preload::VisibleQp>(qp)) return preload::SetErrno(EOPNOTSUPP);
  return preload::CallReal(&::ibv_set_ece, "ibv_set_ece", EINVAL, qp, ece);
}

int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
  if (preload::IsOurs<preload::VisibleQp>(qp)) return preload::SetErrno(EOPNOTSUPP);
  return preload::CallReal(&::ibv_query_ece, "ibv_query_ece", EINVAL, qp, ece);
}

}  // extern "C"
