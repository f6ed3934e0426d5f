#include "verbena/transport/preload/errors.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace verbena::internal::preload {
namespace {

bool Verbose() {
  static const bool verbose = [] {
    const char* value = std::getenv("VERBENA_SOFT_VERBOSE");
    return value != nullptr && std::strcmp(value, "0") != 0;
  }();
  return verbose;
}

int ErrnoOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kResourceExhausted:
      return ENOMEM;
    case absl::StatusCode::kPermissionDenied:
      return EACCES;
    case absl::StatusCode::kNotFound:
      return ENODEV;
    case absl::StatusCode::kUnimplemented:
      return EOPNOTSUPP;
    case absl::StatusCode::kFailedPrecondition:
      return EBUSY;
    case absl::StatusCode::kUnavailable:
      return EAGAIN;
    case absl::StatusCode::kInternal:
      return EIO;
    default:
      return EINVAL;
  }
}

}  // namespace

int SetErrno(const absl::Status& status) {
  if (status.ok()) return 0;
  if (Verbose()) {
    std::fprintf(stderr, "verbena soft device: %s\n", std::string(status.message()).c_str());
  }
  return SetErrno(ErrnoOf(status.code()));
}

int SetErrno(int error) {
  errno = error;
  return error;
}

int Refuse(const char* why) {
  static std::mutex mutex;
  // Bounded: the literals of this library.
  static std::vector<const char*>* said = new std::vector<const char*>;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (std::find(said->begin(), said->end(), why) == said->end()) {
      said->push_back(why);
      std::fprintf(stderr, "verbena soft device: %s\n", why);
    }
  }
  return SetErrno(EOPNOTSUPP);
}

}  // namespace verbena::internal::preload
