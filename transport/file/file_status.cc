#include "transport/file/file_status.h"

#include <cerrno>

#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {
namespace {

// kUnknown for what files share with everything else.
absl::StatusCode CodeOfFileErrno(int error) {
  switch (error) {
    case EDQUOT:
      return absl::StatusCode::kResourceExhausted;
    case EFBIG:
      return absl::StatusCode::kOutOfRange;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ETXTBSY:
    case EBADF:
      return absl::StatusCode::kFailedPrecondition;
    case ENAMETOOLONG:
      return absl::StatusCode::kInvalidArgument;
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case EIO:
      return absl::StatusCode::kDataLoss;
    case ECANCELED:
      return absl::StatusCode::kCancelled;
    default:
      return absl::StatusCode::kUnknown;
  }
}

}  // namespace

absl::Status FileStatus(int error, const std::string& what) {
  absl::Status status = ErrnoStatus(error, what);
  const absl::StatusCode code = CodeOfFileErrno(error);
  return code == absl::StatusCode::kUnknown ? status : absl::Status(code, status.message());
}

}  // namespace verbena::internal
