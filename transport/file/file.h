// File: a file that coroutines read and write, without blocking their executor.
//
// Operations travel through the executor's io_uring, straight into and out of Buffers. Without
// io_uring a few threads serve the same interface more slowly, and the log says so. A File belongs
// to the executor that opened it, and must be destroyed before that executor. Any thread may call
// its methods, as in BlockOn(executor, file.Read(…)); the Tasks that they return run on that
// executor alone. A File may be destroyed while Tasks on it are under way: the descriptor is
// closed, in the background, after the last of them.
//
// Errors name the file, the place in it and errno: NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED
// for a full disk, OUT_OF_RANGE for a file that would be too large, DATA_LOSS when the device
// fails, INVALID_ARGUMENT for what O_DIRECT does not take.
//
// Every await can be cancelled: it returns CANCELLED (or DEADLINE_EXCEEDED) at once, while the
// kernel may still work on the operation, which keeps the memory of its buffer. So after a
// cancelled read or write the Buffer must be destroyed, not used again: its memory returns to the
// pool once the kernel has let go of it. This also holds if the Task is destroyed. A cancelled
// write may or may not happen. In a handler of a server the call's response waits until the kernel
// is done with a change of a file that was cancelled. A new read or write of memory that the kernel
// may still use fails with FAILED_PRECONDITION, which ends by itself: memory of the program's own
// (RegisteredMemory) can be used again then. Destroying the executor waits for the operations that
// the kernel has, for ever if threads read a pipe that nobody writes. At most 256 operations of an
// executor (1024 with threads) are under way; more wait in order.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(File file, co_await File::Open("/data/v0", {.flags = O_RDWR}));
//   VERBENA_CO_ASSIGN_OR_RETURN(size_t bytes, co_await file.Read(buffer.view(), /*offset=*/0));
//   VERBENA_CO_RETURN_IF_ERROR(co_await file.Write(buffer.Slice(0, bytes), /*offset=*/8192));
//   VERBENA_CO_RETURN_IF_ERROR(co_await file.Datasync());

#ifndef VERBENA_TRANSPORT_FILE_FILE_H_
#define VERBENA_TRANSPORT_FILE_FILE_H_

#include <fcntl.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

struct OpenFile;

}  // namespace verbena::internal

namespace verbena {

struct FileOptions {
  // As open(2) takes them; O_CLOEXEC is always added.
  int flags = O_RDONLY;
  mode_t mode = 0644;
  // O_DIRECT: past the page cache. If the file system has no O_DIRECT, the file is opened without
  // it, the log says so, and File::direct() is false.
  bool direct = false;
};

struct FileStat {
  uint64_t size = 0;
  uint64_t allocated_bytes = 0;
  mode_t mode = 0;  // type and permissions
  uint64_t inode = 0;
  std::chrono::nanoseconds modified{};  // since 1970
};

// A file that is open, or none.
//
//   precondition                                     how it is checked     test
//   a file, for every method but the destructor      a check aborts        file_lifetime_test
//   Tasks run on the executor that opened it         a check aborts        file_lifetime_test
//   no cancelled transfer may still use the memory   FAILED_PRECONDITION   file_lifetime_test
//   no two transfers at once use the same memory     not checked
class VERBENA_EXPORT File {
 public:
  // On an Executor; FAILED_PRECONDITION on another scheduler.
  static Task<absl::StatusOr<File>> Open(std::string path, FileOptions options = {});

  // No file.
  File() = default;
  File(File&& other) noexcept : file_(std::exchange(other.file_, nullptr)) {}
  File& operator=(File&& other) noexcept {
    if (this != &other) {
      Release();
      file_ = std::exchange(other.file_, nullptr);
    }
    return *this;
  }
  // Closes it in the background. From any thread.
  ~File() { Release(); }

  explicit operator bool() const { return file_ != nullptr; }
  const std::string& path() const;
  bool direct() const;
  // Offsets, lengths and addresses must be multiples of this: 1 without O_DIRECT.
  uint32_t alignment() const;

  // Reads into all of `part`; less only at the end of the file (0 beyond it). The Buffer must live
  // until the Task is awaited to its end or destroyed.
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<size_t>> Read(BufferView part, uint64_t offset) const;
  // Writes all of `part`, or says how much of it was written before the error.
  VERBENA_CORO_WRAPPER Task<absl::Status> Write(BufferView part, uint64_t offset) const;
  // Returns once all earlier writes are durable: with all metadata of the file (Sync), or with
  // those that are needed to read the bytes back (Datasync).
  VERBENA_CORO_WRAPPER Task<absl::Status> Sync() const;
  VERBENA_CORO_WRAPPER Task<absl::Status> Datasync() const;
  // As fallocate(2); `mode` 0 reserves space and extends the file. UNIMPLEMENTED if the file system
  // has no fallocate.
  VERBENA_CORO_WRAPPER Task<absl::Status> Fallocate(uint64_t offset, uint64_t bytes,
                                                    int mode = 0) const;
  VERBENA_CORO_WRAPPER Task<absl::StatusOr<FileStat>> Stat() const;
  // Closes it and returns what close(2) says. FAILED_PRECONDITION while another Task is under way
  // on it: then the file is closed in the background, after that Task. From the call on, this
  // object is no file.
  VERBENA_CORO_WRAPPER Task<absl::Status> Close();

 private:
  explicit File(internal::OpenFile* file) : file_(file) {}
  // Precondition of every method but the destructor: this object is a file.
  internal::OpenFile& open_file() const;
  void Release();

  internal::OpenFile* file_ = nullptr;
};

// Names of files, changed by coroutines without blocking their executor.
//
// Each function runs one system call through the executor's io_uring, or on the threads that stand
// in for it. FAILED_PRECONDITION on another scheduler than an Executor. Errors name the path and
// errno, as File's do.
//
// A cancelled await returns CANCELLED (or DEADLINE_EXCEEDED) at once, while the kernel may still
// carry out the call. (In a handler, the response waits for it.) A caller that must know whether a
// name was changed awaits with .In(nullptr).
//
// A changed name is durable once SyncDirectory() of its directory has returned OK.
//
//   VERBENA_CO_RETURN_IF_ERROR(
//       co_await RenameFile("/data/v.new", "/data/v", RENAME_NOREPLACE).In(nullptr));
//   VERBENA_CO_RETURN_IF_ERROR(co_await SyncDirectory("/data"));

// As renameat2(2). With RENAME_NOREPLACE: ALREADY_EXISTS if there is such a name, and
// INVALID_ARGUMENT on a file system that cannot tell.
VERBENA_EXPORT Task<absl::Status> RenameFile(std::string from, std::string to, unsigned flags = 0);

// As unlink(2).
VERBENA_EXPORT Task<absl::Status> RemoveFile(std::string path);

// As mkdir(2).
VERBENA_EXPORT Task<absl::Status> MakeDirectory(std::string path, mode_t mode = 0755);

// Opens the directory and syncs it.
VERBENA_EXPORT Task<absl::Status> SyncDirectory(std::string path);

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_FILE_FILE_H_
