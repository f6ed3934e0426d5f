#include "verbena/transport/file/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/file/file_service.h"
#include "verbena/transport/file/operation.h"

namespace verbena::internal {

// errno of file operations as absl::Status, with the file's name and where in it.

// `error` is a positive errno; `what` says what was tried, e.g. "write of 4096 bytes at 8192 of
// /data/volume7". A full disk or quota is RESOURCE_EXHAUSTED, a file that is too large
// OUT_OF_RANGE, a device's failure DATA_LOSS.
absl::Status FileStatus(int error, const std::string& what);

}  // namespace verbena::internal

namespace verbena {

using internal::FileAwaiter;
using internal::FileReference;
using internal::FileRequest;
using internal::FileService;
using internal::OpenFile;

namespace {

using Kind = FileRequest::Kind;

// One system call moves at most this; the kernel's own limit is a page below 2 GiB.
constexpr size_t kMaxTransferBytes = size_t{1} << 30;
// O_DIRECT's usual alignment, for kernels that do not tell.
constexpr uint32_t kUsualAlignment = 4096;

// --- Opening -------------------------------------------------------------------------------------

void LogWithoutDirect(const OpenFile& file) {
  VERBENA_LOG_LINE(
      kFile, kInfo,
      fmt::format("{} is used without O_DIRECT, which its file system does not have", file.path),
      {{"path", file.path}});
}

void SetAlignment(OpenFile& file, [[maybe_unused]] const struct statx& stat) {
  file.alignment = kUsualAlignment;
#ifdef STATX_DIOALIGN
  if ((stat.stx_mask & STATX_DIOALIGN) == 0) return;
  file.alignment = std::max(stat.stx_dio_mem_align, stat.stx_dio_offset_align);
  if (file.alignment != 0) return;
  // The file can be opened with O_DIRECT, but neither read nor written.
  const int flags = fcntl(file.fd, F_GETFL);
  fcntl(file.fd, F_SETFL, flags & ~O_DIRECT);
  file.direct = false;
  file.alignment = 1;
  LogWithoutDirect(file);
#endif
}

Task<absl::Status> OpenDescriptor(OpenFile& file, int flags, mode_t mode) {
  FileAwaiter open(file.service,
                   {.kind = Kind::kOpen, .path = file.path, .flags = flags, .mode = mode});
  const int32_t result = co_await open;
  VERBENA_CO_RETURN_IF_ERROR(open.cancelled());
  if (result < 0) co_return internal::FileStatus(-result, "open of " + file.path);
  file.fd = result;
  file.direct = (flags & O_DIRECT) != 0;
  file.nonblocking = (flags & O_NONBLOCK) != 0;
  co_return absl::OkStatus();
}

Task<absl::Status> FindAlignment(FileReference file) {
  FileAwaiter stat(file->service, {.kind = Kind::kStat, .file = file});
  const int32_t result = co_await stat;
  VERBENA_CO_RETURN_IF_ERROR(stat.cancelled());
  if (result < 0) co_return internal::FileStatus(-result, "statx of " + file->path);
  SetAlignment(*file, stat.stat());
  co_return absl::OkStatus();
}

// --- Operations ----------------------------------------------------------------------------------

absl::Status TransferStatus(int error, const char* what, const OpenFile& file, size_t bytes,
                            uint64_t offset, size_t done) {
  std::string message = fmt::format("{} of {} bytes at {} of {}", what, bytes, offset, file.path);
  if (done > 0) message += fmt::format(", after {} bytes", done);
  if (error == EINVAL && file.direct) {
    message += fmt::format(" (O_DIRECT wants offset, length and memory address in multiples of {})",
                           file.alignment);
  }
  return internal::FileStatus(error, message);
}

// A transfer that was given up may fill the memory, or read it, at any later time.
absl::Status CheckUnused(Kind kind, const char* what, const OpenFile& file, BufferView part,
                         uint64_t offset) {
  if (!file.service.IsStillUsed(part, kind)) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "{} of {} bytes at {} of {}: its memory may still be in use by a read or write that was "
      "cancelled: destroy the Buffer of that, and take another",
      what, part.size(), offset, file.path));
}

// The kernel's offsets are signed, and a ring takes -1 for something else.
bool IsBeyondAnyFile(uint64_t offset, size_t bytes) {
  return offset > static_cast<uint64_t>(std::numeric_limits<off_t>::max()) - bytes;
}

Task<absl::StatusOr<size_t>> ReadAll(FileReference file, BufferView part, uint64_t offset) {
  if (IsBeyondAnyFile(offset, part.size())) {
    co_return TransferStatus(EINVAL, "read", *file, part.size(), offset, 0);
  }
  VERBENA_CO_RETURN_IF_ERROR(CheckUnused(Kind::kRead, "read", *file, part, offset));
  size_t done = 0;
  while (done < part.size()) {
    const BufferView rest = part.Slice(done, std::min(part.size() - done, kMaxTransferBytes));
    FileAwaiter read(file->service,
                     {.kind = Kind::kRead, .file = file, .part = rest, .offset = offset + done});
    const int32_t result = co_await read;
    VERBENA_CO_RETURN_IF_ERROR(read.cancelled());
    if (result < 0) co_return TransferStatus(-result, "read", *file, part.size(), offset, done);
    done += static_cast<size_t>(result);
    // A read may be short before the end of the file, too: then ask for the rest. With O_DIRECT,
    // only the end of the file makes a length odd, and nothing could be read from there.
    if (result == 0 || done % file->alignment != 0) break;
  }
  co_return done;
}

Task<absl::Status> WriteAll(FileReference file, BufferView part, uint64_t offset) {
  if (IsBeyondAnyFile(offset, part.size())) {
    co_return TransferStatus(EINVAL, "write", *file, part.size(), offset, 0);
  }
  VERBENA_CO_RETURN_IF_ERROR(CheckUnused(Kind::kWrite, "write", *file, part, offset));
  size_t done = 0;
  while (done < part.size()) {
    const BufferView rest = part.Slice(done, std::min(part.size() - done, kMaxTransferBytes));
    FileAwaiter write(file->service,
                      {.kind = Kind::kWrite, .file = file, .part = rest, .offset = offset + done});
    const int32_t result = co_await write;
    VERBENA_CO_RETURN_IF_ERROR(write.cancelled());
    // No file system has a reason to write nothing and report no error.
    const int error = result == 0 ? EIO : -result;
    if (result <= 0) co_return TransferStatus(error, "write", *file, part.size(), offset, done);
    done += static_cast<size_t>(result);
  }
  co_return absl::OkStatus();
}

Task<absl::Status> Call(FileRequest request, const char* what) {
  const FileReference file = request.file;
  FileAwaiter call(file->service, std::move(request));
  const int32_t result = co_await call;
  VERBENA_CO_RETURN_IF_ERROR(call.cancelled());
  if (result < 0)
    co_return internal::FileStatus(-result, fmt::format("{} of {}", what, file->path));
  co_return absl::OkStatus();
}

FileStat ToFileStat(const struct statx& stat) {
  return {.size = stat.stx_size,
          .allocated_bytes = stat.stx_blocks * 512,
          .mode = stat.stx_mode,
          .inode = stat.stx_ino,
          .modified = std::chrono::seconds(stat.stx_mtime.tv_sec) +
                      std::chrono::nanoseconds(stat.stx_mtime.tv_nsec)};
}

Task<absl::StatusOr<FileStat>> StatFile(FileReference file) {
  FileAwaiter stat(file->service, {.kind = Kind::kStat, .file = file});
  const int32_t result = co_await stat;
  VERBENA_CO_RETURN_IF_ERROR(stat.cancelled());
  if (result < 0) co_return internal::FileStatus(-result, "statx of " + file->path);
  co_return ToFileStat(stat.stat());
}

Task<absl::Status> CloseNow(FileReference file) {
  if (file->references.load(std::memory_order_acquire) > 1) {
    co_return absl::FailedPreconditionError(file->path +
                                            " is closed while operations on it are under way");
  }
  FileService& service = file->service;
  service.backend().OnClosing(*file);
  FileAwaiter close(service, {.kind = Kind::kClose, .fd = std::exchange(file->fd, -1)});
  const int32_t result = co_await close;
  if (result < 0) co_return internal::FileStatus(-result, "close of " + file->path);
  co_return absl::OkStatus();
}

// A descriptor that was taken is closed, also when the scope is cancelled.
Task<absl::Status> CloseShielded(FileReference file) {
  co_return co_await CloseNow(std::move(file)).In(nullptr);
}

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

Task<absl::StatusOr<File>> File::Open(std::string path, FileOptions options) {
  const TaskContext context = co_await CurrentContext();
  VERBENA_CO_ASSIGN_OR_RETURN(FileService * service, FileService::Of(*context.scheduler));
  const FileReference file(new OpenFile(*service, std::move(path)));
  int flags = options.flags | O_CLOEXEC;
  if (options.direct) flags |= O_DIRECT;
  absl::Status opened = co_await OpenDescriptor(*file, flags, options.mode);
  if (absl::IsInvalidArgument(opened) && (flags & O_DIRECT) != 0) {
    flags &= ~O_DIRECT;
    opened = co_await OpenDescriptor(*file, flags, options.mode);
    if (opened.ok()) LogWithoutDirect(*file);
  }
  VERBENA_CO_RETURN_IF_ERROR(opened);
  if (file->direct) {
    VERBENA_CO_RETURN_IF_ERROR(co_await FindAlignment(file));
  }
  service->backend().OnOpened(*file);
  file->Hold();  // the File's reference
  co_return File(file.get());
}

internal::OpenFile& File::open_file() const {
  VERBENA_CHECK(file_ != nullptr) << "this object is no file: it was closed, moved from or never "
                                     "opened";
  return *file_;
}

const std::string& File::path() const { return open_file().path; }
bool File::direct() const { return open_file().direct; }
uint32_t File::alignment() const { return open_file().alignment; }

Task<absl::StatusOr<size_t>> File::Read(BufferView part, uint64_t offset) const {
  return ReadAll(FileReference(&open_file()), part, offset);
}

Task<absl::Status> File::Write(BufferView part, uint64_t offset) const {
  return WriteAll(FileReference(&open_file()), part, offset);
}

Task<absl::Status> File::Sync() const {
  return Call({.kind = Kind::kSync, .file = FileReference(&open_file())}, "fsync");
}

Task<absl::Status> File::Datasync() const {
  return Call({.kind = Kind::kDatasync, .file = FileReference(&open_file())}, "fdatasync");
}

Task<absl::Status> File::Fallocate(uint64_t offset, uint64_t bytes, int mode) const {
  return Call({.kind = Kind::kFallocate,
               .file = FileReference(&open_file()),
               .offset = offset,
               .length = bytes,
               .flags = mode},
              "fallocate");
}

Task<absl::StatusOr<FileStat>> File::Stat() const { return StatFile(FileReference(&open_file())); }

Task<absl::Status> File::Close() {
  FileReference file(&open_file());
  Release();
  return CloseShielded(std::move(file));
}

void File::Release() {
  if (OpenFile* file = std::exchange(file_, nullptr)) file->Drop();
}

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
