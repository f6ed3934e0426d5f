// FileOperation: one system call on a file, on its way to the kernel and back. Internal to
// transport/file.
//
// Owned by its executor's FileService and reused; never in a coroutine's frame. So the Task that
// waits for it may be destroyed at any moment: the operation goes on, keeps its buffer and its
// file, and forgets who waited. Used on the executor's thread, except while a thread of
// ThreadBackend executes it.

#ifndef VERBENA_TRANSPORT_FILE_OPERATION_H_
#define VERBENA_TRANSPORT_FILE_OPERATION_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/executor/io_ring.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// The fields that kStat asks for. Kernels that do not know the last one leave it out.
#ifdef STATX_DIOALIGN
inline constexpr unsigned kStatMask = STATX_BASIC_STATS | STATX_DIOALIGN;
#else
inline constexpr unsigned kStatMask = STATX_BASIC_STATS;
#endif

class FileAwaiter;
class FileService;

// An open file. Its File, the Tasks on it and the operations under way each hold a reference, which
// any thread may take and drop: a Task is often made on one thread and awaited on the executor's.
// The executor's thread closes the file after the last one. Everything else belongs to that thread.
struct OpenFile final : InboxItem {
  OpenFile(FileService& its_service, std::string its_path)
      : service(its_service), path(std::move(its_path)) {}

  void Hold() { references.fetch_add(1, std::memory_order_relaxed); }
  void Drop();
  // Closes the file. Arrives by the inbox if another thread dropped the last reference.
  void Run() override;

  FileService& service;
  const std::string path;
  int fd = -1;
  // Its index in the ring's table of files; -1 if it is not registered.
  int slot = -1;
  bool direct = false;
  // O_NONBLOCK: EAGAIN is an answer, not a refusal for the moment.
  bool nonblocking = false;
  // O_DIRECT needs offset, length and address to be multiples of this; 1 without it.
  uint32_t alignment = 1;
  std::atomic<uint32_t> references{0};
};

// One reference to an open file, or none. Any thread.
class FileReference {
 public:
  FileReference() = default;
  explicit FileReference(OpenFile* file) : file_(file) {
    if (file_ != nullptr) file_->Hold();
  }
  FileReference(const FileReference& other) : FileReference(other.file_) {}
  FileReference(FileReference&& other) noexcept : file_(std::exchange(other.file_, nullptr)) {}
  FileReference& operator=(FileReference other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~FileReference() { Reset(); }

  OpenFile* get() const { return file_; }
  OpenFile* operator->() const { return file_; }
  OpenFile& operator*() const { return *file_; }
  explicit operator bool() const { return file_ != nullptr; }
  void Reset() {
    if (OpenFile* file = std::exchange(file_, nullptr)) file->Drop();
  }

 private:
  OpenFile* file_ = nullptr;
};

// The system call to make. Fields that its kind does not use keep their defaults.
struct FileRequest {
  enum class Kind {
    kOpen,
    kRead,
    kWrite,
    kSync,
    kDatasync,
    kFallocate,
    kStat,
    kClose,
    kRename,
    kRemove,
    kMakeDirectory,
  };

  Kind kind = Kind::kStat;
  FileReference file{};  // all but kOpen, kClose and those of names
  int fd = -1;           // kClose
  std::string path{};    // kOpen and those of names
  std::string to{};      // kRename
  BufferView part{};     // kRead, kWrite
  uint64_t offset = 0;   // kRead, kWrite, kFallocate
  uint64_t length = 0;   // kFallocate
  int flags = 0;         // kOpen, kRename, and the mode of kFallocate
  mode_t mode = 0;       // kOpen, kMakeDirectory

  // Whether the call changes bytes or names that others see.
  bool changes_files() const;
};

class FileOperation final : public RingOperation,
                            public InboxItem,
                            public IntrusiveNode<FileOperation> {
 public:
  explicit FileOperation(FileService& service) : service_(service) {}

  // From the ring, and from the thread pool through the inbox.
  void OnComplete(int32_t result) override;
  void Run() override { OnComplete(result); }

  FileRequest request;
  // Keeps the memory of request.part.
  BufferPin pin;
  struct statx stat = {};
  // Null if nobody waits any more.
  FileAwaiter* awaiter = nullptr;
  // Hears if the operation is left, and ends after that: of operations that change files. May be
  // null.
  WorkOwner* owner = nullptr;
  // Handed to the kernel, or to a thread.
  bool started = false;
  // How often the kernel has refused it for the moment.
  int refusals = 0;
  // For the thread pool.
  std::atomic<bool> cancelled{false};
  int32_t result = 0;

 private:
  FileService& service_;
};

// FileBackend: how an executor's file operations reach the kernel. Internal to transport/file.
//
// Owned by the executor's FileService; one thread. Every operation that was started completes
// (FileOperation::OnComplete), in a later turn and never inline, also when it was cancelled.
class FileBackend {
 public:
  virtual ~FileBackend() = default;

  // "io_uring" or "threads".
  virtual const char* name() const = 0;
  // The most operations that may be started and not complete.
  virtual size_t bound() const = 0;

  virtual void Start(FileOperation& operation) = 0;
  // Asks that `operation` end soon.
  virtual void Cancel(FileOperation& operation) = 0;
  // OnOpened(): a file was opened, and may be registered. OnClosing(): the file is about to be
  // closed, with no operation on it.
  virtual void OnOpened(OpenFile&) {}
  virtual void OnClosing(OpenFile&) {}
  // Blocks until every operation has completed, or its completion is in the executor's inbox.
  // Operations that have not begun may be dropped, except closes. `in_flight` counts those that
  // have not completed, and falls as they complete.
  virtual void Stop(const size_t& in_flight) = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_FILE_OPERATION_H_
