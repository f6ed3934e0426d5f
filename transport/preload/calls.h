// Functions that verbs.h calls through an ibv_context.

#ifndef VERBENA_TRANSPORT_PRELOAD_CALLS_H_
#define VERBENA_TRANSPORT_PRELOAD_CALLS_H_

#include <infiniband/verbs.h>

#include "absl/status/status.h"
#include "verbena/transport/preload/errors.h"
#include "verbena/transport/preload/objects.h"

namespace verbena::internal::preload {

// Each sets the functions of its own file.
void FillQueryCalls(verbs_context& context);
void FillMemoryCalls(verbs_context& context);
void FillCqCalls(verbs_context& context);
void FillSrqCalls(verbs_context& context);
void FillQpCalls(verbs_context& context);

// The functions of ibv_cq_ex and ibv_qp_ex.
void FillExtendedCq(VisibleCq& cq);
void FillExtendedQp(VisibleQp& qp);

// Destroy what stands behind an object: the rest of DestroyObject().
absl::Status DestroyDomain(VisibleDomain& domain);
absl::Status DestroyCq(VisibleCq& cq);
absl::Status DestroySrq(VisibleSrq& srq);
absl::Status DestroyQp(VisibleQp& qp);

// Destroys an object by `destroy`, which returns a status, unless somebody else already does.
// Returns an errno, which it sets, or 0. EINVAL for what is not alive.
template <typename T, typename Destroy>
int DestroyObject(const void* handle, Destroy destroy) {
  auto* object = static_cast<T*>(Registry::Get().BeginDestroying(T::kKind, handle));
  if (object == nullptr) return SetErrno(EINVAL);
  const int error = SetErrno(destroy(*object));
  Registry::Get().EndDestroying(handle, error == 0);
  if (error == 0) delete object;
  return error;
}

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_CALLS_H_
