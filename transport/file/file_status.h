// errno of file operations as absl::Status, with the file's name and where in it.

#ifndef VERBENA_TRANSPORT_FILE_FILE_STATUS_H_
#define VERBENA_TRANSPORT_FILE_FILE_STATUS_H_

#include <string>

#include "absl/status/status.h"

namespace verbena::internal {

// `error` is a positive errno; `what` says what was tried, e.g. "write of 4096 bytes at 8192 of
// /data/volume7". A full disk or quota is RESOURCE_EXHAUSTED, a file that is too large
// OUT_OF_RANGE, a device's failure DATA_LOSS.
absl::Status FileStatus(int error, const std::string& what);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_FILE_FILE_STATUS_H_
