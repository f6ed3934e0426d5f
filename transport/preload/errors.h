// How the preloaded library says no: by errno, as libibverbs does, and in words on standard error.

#ifndef VERBENA_TRANSPORT_PRELOAD_ERRORS_H_
#define VERBENA_TRANSPORT_PRELOAD_ERRORS_H_

#include "absl/status/status.h"

namespace verbena::internal::preload {

// Sets errno to what `status` stands for, and returns it; 0, and errno as it was, if it is OK. With
// VERBENA_SOFT_VERBOSE=1 the message goes to standard error.
int SetErrno(const absl::Status& status);

// Sets errno to `error`, and returns it.
int SetErrno(int error);

// For what the soft device does not have: EOPNOTSUPP, and `why`, a string literal, as a line on
// standard error the first time.
int Refuse(const char* why);

}  // namespace verbena::internal::preload

#endif  // VERBENA_TRANSPORT_PRELOAD_ERRORS_H_
