// Names of files, changed by coroutines without blocking their executor.
//
// Each function runs one system call through the executor's io_uring, or on the threads that stand
// in for it. FAILED_PRECONDITION on another scheduler than an Executor. Errors name the path and
// errno, as File's do.
//
// A cancelled await returns CANCELLED (or DEADLINE_EXCEEDED) at once, while the kernel may still
// carry out the call. A caller that must know whether a name was changed awaits with .In(nullptr).
//
// A changed name is durable once SyncDirectory() of its directory has returned OK.
//
//   VERBENA_CO_RETURN_IF_ERROR(
//       co_await RenameFile("/data/v.new", "/data/v", RENAME_NOREPLACE).In(nullptr));
//   VERBENA_CO_RETURN_IF_ERROR(co_await SyncDirectory("/data"));

#ifndef VERBENA_TRANSPORT_FILE_FILE_NAMES_H_
#define VERBENA_TRANSPORT_FILE_FILE_NAMES_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

// As renameat2(2). With RENAME_NOREPLACE: ALREADY_EXISTS if there is such a name, and
// INVALID_ARGUMENT on a file system that cannot tell.
Task<absl::Status> RenameFile(std::string from, std::string to, unsigned flags = 0);

// As unlink(2).
Task<absl::Status> RemoveFile(std::string path);

// As mkdir(2).
Task<absl::Status> MakeDirectory(std::string path, mode_t mode = 0755);

// Opens the directory and syncs it.
Task<absl::Status> SyncDirectory(std::string path);

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_FILE_FILE_NAMES_H_
