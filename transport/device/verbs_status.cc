#include "verbena/transport/device/verbs_status.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "fmt/format.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal {
namespace {

absl::StatusCode CodeOfErrno(int error) {
  switch (error) {
    case EINVAL:
    case ERANGE:
    case EFAULT:
      return absl::StatusCode::kInvalidArgument;
    case ENOMEM:
    case EAGAIN:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    case EPERM:
    case EACCES:
      return absl::StatusCode::kPermissionDenied;
    case ENOENT:
    case ENODEV:
    case ENXIO:
      return absl::StatusCode::kNotFound;
    case ENOSYS:
    case EOPNOTSUPP:
    case EPROTONOSUPPORT:
      return absl::StatusCode::kUnimplemented;
    case EBUSY:
      return absl::StatusCode::kFailedPrecondition;
    case ECONNREFUSED:
    case ECONNRESET:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case EPIPE:
    case ENOTCONN:
      return absl::StatusCode::kUnavailable;
    case ETIMEDOUT:
      return absl::StatusCode::kDeadlineExceeded;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::StatusCode CodeOfWc(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return absl::StatusCode::kOk;
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_MW_BIND_ERR:
      return absl::StatusCode::kInternal;
    case IBV_WC_REM_ACCESS_ERR:
      return absl::StatusCode::kPermissionDenied;
    case IBV_WC_REM_INV_REQ_ERR:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

std::string WordsOfPeerGone(const std::string& peer) {
  return fmt::format("{} closed the connection or died", peer);
}

std::string WordsOfWc(ibv_wc_status status, const std::string& peer) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return WordsOfPeerGone(peer) + ", or the network lost its packets";
    case IBV_WC_WR_FLUSH_ERR:
      return WordsOfPeerGone(peer) + ", or the device here ended the connection";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return fmt::format("{} had no receive posted for a message in time", peer);
    case IBV_WC_REM_ACCESS_ERR:
      return fmt::format("{} does not allow an access to its memory", peer);
    case IBV_WC_REM_INV_REQ_ERR:
      return fmt::format("the device of {} refused a request as invalid", peer);
    case IBV_WC_REM_OP_ERR:
      return fmt::format("the device of {} could not carry out a request", peer);
    default:
      break;
  }
  if (CodeOfWc(status) == absl::StatusCode::kInternal) {
    return fmt::format("the device here refused a request to {}; the log names its error", peer);
  }
  return fmt::format("the device lost the connection to {}; the log names its error", peer);
}

}  // namespace

absl::Status ErrnoStatus(int error, const std::string& what) {
  error = std::abs(error);
  // Both are null for a number that the C library does not know.
  const char* name = strerrorname_np(error);
  const char* description = strerrordesc_np(error);
  if (name == nullptr || description == nullptr) {
    return absl::Status(CodeOfErrno(error), fmt::format("{}: errno {}", what, error));
  }
  return absl::Status(CodeOfErrno(error), fmt::format("{}: {} ({})", what, description, name));
}

const char* WcStatusName(ibv_wc_status status) {
  static constexpr const char* kNames[] = {"IBV_WC_SUCCESS",
                                           "IBV_WC_LOC_LEN_ERR",
                                           "IBV_WC_LOC_QP_OP_ERR",
                                           "IBV_WC_LOC_EEC_OP_ERR",
                                           "IBV_WC_LOC_PROT_ERR",
                                           "IBV_WC_WR_FLUSH_ERR",
                                           "IBV_WC_MW_BIND_ERR",
                                           "IBV_WC_BAD_RESP_ERR",
                                           "IBV_WC_LOC_ACCESS_ERR",
                                           "IBV_WC_REM_INV_REQ_ERR",
                                           "IBV_WC_REM_ACCESS_ERR",
                                           "IBV_WC_REM_OP_ERR",
                                           "IBV_WC_RETRY_EXC_ERR",
                                           "IBV_WC_RNR_RETRY_EXC_ERR",
                                           "IBV_WC_LOC_RDD_VIOL_ERR",
                                           "IBV_WC_REM_INV_RD_REQ_ERR",
                                           "IBV_WC_REM_ABORT_ERR",
                                           "IBV_WC_INV_EECN_ERR",
                                           "IBV_WC_INV_EEC_STATE_ERR",
                                           "IBV_WC_FATAL_ERR",
                                           "IBV_WC_RESP_TIMEOUT_ERR",
                                           "IBV_WC_GENERAL_ERR",
                                           "IBV_WC_TM_ERR",
                                           "IBV_WC_TM_RNDV_INCOMPLETE"};
  const auto index = static_cast<size_t>(status);
  return index < std::size(kNames) ? kNames[index] : "unknown IBV_WC status";
}

absl::Status WcStatus(const ibv_wc& completion, const std::string& peer) {
  if (completion.status == IBV_WC_SUCCESS) return absl::OkStatus();
  return absl::Status(
      CodeOfWc(completion.status),
      fmt::format("{} (QPN {:#x}, peer {}, vendor error {:#x})", WcStatusName(completion.status),
                  completion.qp_num, peer, completion.vendor_err));
}

absl::Status EndOfConnection(const ibv_wc& completion, const std::string& peer) {
  if (completion.status == IBV_WC_SUCCESS) return absl::OkStatus();
  return absl::Status(CodeOfWc(completion.status), WordsOfWc(completion.status, peer));
}

absl::Status PeerGone(const std::string& peer) {
  return absl::UnavailableError(WordsOfPeerGone(peer));
}

// A device may flush what is posted to a queue pair whose peer has ended it. On a soft device no
// packet is lost without a peer that is.
bool IsOrdinaryEnd(ibv_wc_status status, DeviceKind kind) {
  if (status == IBV_WC_RETRY_EXC_ERR) return kind == DeviceKind::kSoft;
  return status == IBV_WC_WR_FLUSH_ERR;
}

}  // namespace verbena::internal
