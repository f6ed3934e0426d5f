#include "verbena/transport/verbs/verbs_call.h"

#include <cerrno>
#include <cstdlib>

#include "fmt/format.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {

int ErrorOfResult(int result, int errno_value) {
  if (result > 0) return result;
  if (result < -1) return -result;
  return errno_value > 0 ? errno_value : EIO;
}

absl::Status RegistrationStatus(int error, const std::string& what, size_t bytes,
                                rlim_t memlock_limit, uint64_t pinned_bytes) {
  if (error != ENOMEM || memlock_limit == RLIM_INFINITY) return ErrnoStatus(error, what);
  return ErrnoStatus(
      error, fmt::format("{}: RLIMIT_MEMLOCK is {} bytes, {} are pinned already, and at least {} "
                         "are needed (ulimit -l, LimitMEMLOCK=, or --ulimit memlock=)",
                         what, memlock_limit, pinned_bytes, pinned_bytes + bytes));
}

uint64_t PinnedBytes(const std::string& proc_status) {
  static const std::string kLabel = "\nVmPin:";
  const size_t at = proc_status.find(kLabel);
  if (at == std::string::npos) return 0;
  return std::strtoull(proc_status.c_str() + at + kLabel.size(), nullptr, 10) * 1024;
}

}  // namespace verbena::internal
