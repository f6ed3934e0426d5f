// verbs' two kinds of failure, errno and the status of a work completion, as absl::Status.
//
// This is the only place that maps them. A message for the log names the verbs constant, which a
// reader can look up. A message for a user says in words what happened to the connection. Both have
// the canonical code that a caller can act on.

#ifndef VERBENA_TRANSPORT_DEVICE_VERBS_STATUS_H_
#define VERBENA_TRANSPORT_DEVICE_VERBS_STATUS_H_

#include <infiniband/verbs.h>

#include <string>

#include "absl/status/status.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal {

// `error` is an errno, or its negative: some providers (siw, erdma, bnxt_re) return that from
// posts. `what` says what was tried, e.g. "ibv_create_cq(cqe=9000) on soft0".
absl::Status ErrnoStatus(int error, const std::string& what);

// The name of a completion's status, e.g. "IBV_WC_RNR_RETRY_EXC_ERR".
const char* WcStatusName(ibv_wc_status status);

// For the log. OK for IBV_WC_SUCCESS. `peer` is how logs name the other side.
absl::Status WcStatus(const ibv_wc& completion, const std::string& peer);

// The same for users: why the completion ends the connection with `peer`. Names no constant.
absl::Status EndOfConnection(const ibv_wc& completion, const std::string& peer);
// UNAVAILABLE: the same words however the end was noticed, by the stream or by the device.
absl::Status PeerGone(const std::string& peer);
// Whether a completion fails so whenever a peer ends. A device of `kind` kRdma tells RETRY_EXC also
// of a network that drops packets: its users must see the constant.
bool IsOrdinaryEnd(ibv_wc_status status, DeviceKind kind);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_DEVICE_VERBS_STATUS_H_
