// How libibverbs' functions report failure, and what a failed registration means.
//
// Pure functions. They are not part of RdmaDevice, so that tests of them need no such device.

#ifndef VERBENA_TRANSPORT_VERBS_VERBS_CALL_H_
#define VERBENA_TRANSPORT_VERBS_VERBS_CALL_H_

#include <sys/resource.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace verbena::internal {

// The errno of a call that returned `result` != 0. Most verbs return the errno, some -1 with errno
// set, and a few providers a negative errno. EIO if there is no errno.
int ErrorOfResult(int result, int errno_value);

// Why ibv_reg_mr of `bytes` failed with `error`. ENOMEM under a finite `memlock_limit` is nearly
// always that limit, which counts what the process has pinned already (`pinned_bytes`), so the
// message names it and the least value that would do.
absl::Status RegistrationStatus(int error, const std::string& what, size_t bytes,
                                rlim_t memlock_limit, uint64_t pinned_bytes);

// VmPin of the text of /proc/self/status, in bytes; 0 when it has none.
uint64_t PinnedBytes(const std::string& proc_status);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_VERBS_VERBS_CALL_H_
