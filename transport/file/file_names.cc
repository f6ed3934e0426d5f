#include "verbena/transport/file/file_names.h"

#include <fcntl.h>

#include <utility>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "transport/file/file_status.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/file/file.h"
#include "verbena/transport/file/file_awaiter.h"
#include "verbena/transport/file/file_operation.h"
#include "verbena/transport/file/file_service.h"

namespace verbena {
namespace {

using internal::FileAwaiter;
using internal::FileRequest;
using internal::FileService;
using Kind = FileRequest::Kind;

// `what` names the call and its paths.
Task<absl::Status> ChangeName(FileRequest request, std::string what) {
  const TaskContext context = co_await CurrentContext();
  VERBENA_CO_ASSIGN_OR_RETURN(FileService * service, FileService::Of(*context.scheduler));
  FileAwaiter change(*service, std::move(request));
  const int32_t result = co_await change;
  VERBENA_CO_RETURN_IF_ERROR(change.cancelled());
  if (result < 0) co_return internal::FileStatus(-result, what);
  co_return absl::OkStatus();
}

}  // namespace

Task<absl::Status> RenameFile(std::string from, std::string to, unsigned flags) {
  std::string what = fmt::format("rename of {} to {}", from, to);
  co_return co_await ChangeName({.kind = Kind::kRename,
                                 .path = std::move(from),
                                 .to = std::move(to),
                                 .flags = static_cast<int>(flags)},
                                std::move(what));
}

Task<absl::Status> RemoveFile(std::string path) {
  std::string what = "unlink of " + path;
  co_return co_await ChangeName({.kind = Kind::kRemove, .path = std::move(path)}, std::move(what));
}

Task<absl::Status> MakeDirectory(std::string path, mode_t mode) {
  std::string what = "mkdir of " + path;
  co_return co_await ChangeName(
      {.kind = Kind::kMakeDirectory, .path = std::move(path), .mode = mode}, std::move(what));
}

Task<absl::Status> SyncDirectory(std::string path) {
  VERBENA_CO_ASSIGN_OR_RETURN(
      File directory, co_await File::Open(std::move(path), {.flags = O_RDONLY | O_DIRECTORY}));
  co_return co_await directory.Sync();
}

}  // namespace verbena
