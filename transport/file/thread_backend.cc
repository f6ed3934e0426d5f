#include "verbena/transport/file/thread_backend.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/process.h"

namespace verbena::internal {
namespace {

// (start) As many as a disk or two keep busy; each blocks in one system call.
constexpr int kThreads = 4;
constexpr size_t kQueueBound = 1024;

template <typename T>
int32_t ResultOf(T result) {
  return result < 0 ? -errno : static_cast<int32_t>(result);
}

// A pipe has no offsets: it is read and written in order, as an io_uring does.
ssize_t ReadAt(int fd, const BufferView& part, off_t offset) {
  const ssize_t result = pread(fd, part.data(), part.size(), offset);
  return result < 0 && errno == ESPIPE ? read(fd, part.data(), part.size()) : result;
}

ssize_t WriteAt(int fd, const BufferView& part, off_t offset) {
  const ssize_t result = pwrite(fd, part.data(), part.size(), offset);
  return result < 0 && errno == ESPIPE ? write(fd, part.data(), part.size()) : result;
}

int32_t Execute(FileOperation& operation) {
  const FileRequest& request = operation.request;
  const auto offset = static_cast<off_t>(request.offset);
  switch (request.kind) {
    case FileRequest::Kind::kOpen:
      return ResultOf(open(request.path.c_str(), request.flags, request.mode));
    case FileRequest::Kind::kRead:
      return ResultOf(ReadAt(request.file->fd, request.part, offset));
    case FileRequest::Kind::kWrite:
      return ResultOf(WriteAt(request.file->fd, request.part, offset));
    case FileRequest::Kind::kSync:
      return ResultOf(fsync(request.file->fd));
    case FileRequest::Kind::kDatasync:
      return ResultOf(fdatasync(request.file->fd));
    case FileRequest::Kind::kFallocate:
      return ResultOf(
          fallocate(request.file->fd, request.flags, offset, static_cast<off_t>(request.length)));
    case FileRequest::Kind::kStat:
      return ResultOf(statx(request.file->fd, "", AT_EMPTY_PATH, kStatMask, &operation.stat));
    case FileRequest::Kind::kClose:
      return ResultOf(close(request.fd));
    case FileRequest::Kind::kRename:
      return ResultOf(renameat2(AT_FDCWD, request.path.c_str(), AT_FDCWD, request.to.c_str(),
                                static_cast<unsigned>(request.flags)));
    case FileRequest::Kind::kRemove:
      return ResultOf(unlink(request.path.c_str()));
    case FileRequest::Kind::kMakeDirectory:
      return ResultOf(mkdir(request.path.c_str(), request.mode));
  }
  return -EINVAL;
}

int32_t ExecuteUnlessCancelled(FileOperation& operation) {
  const bool is_close = operation.request.kind == FileRequest::Kind::kClose;
  int32_t result = -ECANCELED;
  // A descriptor is closed even by a close that was interrupted.
  do {
    if (operation.cancelled.load(std::memory_order_relaxed)) return -ECANCELED;
    result = Execute(operation);
  } while (result == -EINTR && !is_close);
  return result;
}

void LogOnce(const absl::Status& why) {
  static std::atomic<bool> logged{false};
  if (logged.exchange(true)) return;
  VERBENA_LOG_LINE(
      kFile, kWarning,
      fmt::format(
          "files are read and written by {} threads per executor, which is slower than "
          "io_uring: {}. Where the kernel forbids io_uring, sysctl kernel.io_uring_disabled "
          "or the container's seccomp profile would mend it",
          kThreads, why.ToString()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileBackend>> ThreadBackend::Create(Executor& executor,
                                                                   const absl::Status& why) {
  auto backend = std::unique_ptr<ThreadBackend>(new ThreadBackend(executor));
  backend->threads_.reserve(kThreads);
  for (int i = 0; i < kThreads && backend->AddThread(); ++i) {
  }
  if (backend->threads_.empty()) {
    return absl::ResourceExhaustedError("the system has no thread for file operations");
  }
  LogOnce(why);
  return std::unique_ptr<FileBackend>(std::move(backend));
}

ThreadBackend::~ThreadBackend() { EndThreads(); }

bool ThreadBackend::AddThread() {
  // std::thread has no other way to say that the system starts no thread.
  try {
    threads_.push_back(StartQuietThread([this] { Serve(); }));
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

size_t ThreadBackend::bound() const { return kQueueBound; }

void ThreadBackend::Start(FileOperation& operation) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    VERBENA_CHECK(!stopping_) << "no thread would take operation " << operation.request.kind;
    queue_.PushBack(operation);
  }
  changed_.notify_one();
}

void ThreadBackend::Cancel(FileOperation& operation) {
  operation.cancelled.store(true, std::memory_order_relaxed);
}

void ThreadBackend::Serve() {
  pthread_setname_np(pthread_self(), "verbena-files");
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    FileOperation* operation = queue_.PopFront();
    if (operation == nullptr) return;
    lock.unlock();
    operation->result = ExecuteUnlessCancelled(*operation);
    executor_.Post(*operation);
    lock.lock();
  }
}

void ThreadBackend::Stop(const size_t&) { EndThreads(); }

void ThreadBackend::EndThreads() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace verbena::internal
