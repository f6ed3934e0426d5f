#include "verbena/transport/connect/rdma_cm_status.h"

#include <fmt/format.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "verbena/transport/connect/rdma_cm_private_data.h"

namespace verbena::internal {
namespace {

std::string ErrnoText(int error) { return std::generic_category().message(error); }

// Reasons of a REJ that a correct peer or a common mistake leads to; others by number alone.
const char* RejectText(int reason) {
  switch (reason) {
    case 1:
      return "no queue pair is free there";
    case 3:
      return "the peer's kernel has no resources for it";
    case 4:
      return "the peer's kernel timed it out";
    case 5:
      return "the peer's kernel does not support the request";
    case 6:
    case 7:
      return "the peer's kernel knows no such connection";
    case 8:
      return "nobody listens there";
    case 9:
      return "the peer does not serve reliable connections";
    case 10:
      return "stale connection: the peer still holds a former one of this queue pair number";
    case 12:
      return "the peer's port does not have that GID";
    case 13:
      return "the peer's port does not have that LID";
    case 14:
      return "the peer refuses the service level";
    case 15:
      return "the peer refuses the traffic class";
    case 16:
      return "the peer refuses the hop limit";
    case 17:
      return "the peer refuses the packet rate";
    case 24:
    case 25:
      return "the peer asks for another port";
    case 26:
      return "the peer refuses the path MTU";
    case 27:
      return "the peer cannot serve so many READs";
    case 28:
      return "the peer refuses it";
    case 29:
      return "the peer refuses the RNR retry count";
    case 30:
      return "the peer's kernel holds a connection of the same id";
    case 31:
      return "the peer speaks another version of the CM";
    case 32:
      return "the peer refuses the flow label";
    default:
      return "the peer's kernel refuses it";
  }
}

std::string ErrorText(int error) {
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
      return "nobody listens there, or the peer refuses it";
    case EHOSTUNREACH:
    case ENETUNREACH:
      return "there is no route to it";
    case ETIMEDOUT:
      return "it does not answer";
    case ENODEV:
      return "the address is not on an RDMA device, or cannot be reached through one";
    case EADDRNOTAVAIL:
      return "the address is not one of this host's";
    default:
      return ErrnoText(error);
  }
}

absl::StatusCode CodeOf(rdma_cm_event_type event, int status) {
  constexpr int kNoResources = 3;
  if (event == RDMA_CM_EVENT_REJECTED && status == kNoResources) {
    return absl::StatusCode::kResourceExhausted;
  }
  return absl::StatusCode::kUnavailable;
}

}  // namespace

absl::Status RdmaCmStatus(rdma_cm_event_type event, int status, std::string_view private_data,
                          const std::string& what) {
  std::string text;
  if (event == RDMA_CM_EVENT_REJECTED) {
    const std::optional<RejectReason> ours = ParseRejectData(private_data);
    text = ours ? RejectReasonText(*ours) : status < 0 ? ErrorText(-status) : RejectText(status);
  } else if (event == RDMA_CM_EVENT_DISCONNECTED) {
    text = "the peer disconnected";
  } else if (event == RDMA_CM_EVENT_DEVICE_REMOVAL) {
    text = "the device is being removed";
  } else if (event == RDMA_CM_EVENT_UNREACHABLE && status >= 0) {
    text = "it does not answer";
  } else {
    text = status == 0 ? "failed" : ErrorText(status < 0 ? -status : status);
  }
  return absl::Status(CodeOf(event, status), fmt::format("{}: {} ({}, status {})", what, text,
                                                         rdma_event_str(event), status));
}

absl::Status RdmaCmCallStatus(const char* call, int error, const std::string& what) {
  return absl::UnavailableError(
      fmt::format("{}: {} ({}: {})", what, ErrorText(error), call, ErrnoText(error)));
}

}  // namespace verbena::internal
