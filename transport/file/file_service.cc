#include "verbena/transport/file/file_service.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <utility>
#include <vector>

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/file/ring_backend.h"
#include "verbena/transport/file/thread_backend.h"

namespace verbena::internal {
namespace {

// (start) How often an operation is started again that the kernel refuses for the moment. Each time
// other work has its turn in between.
constexpr int kMaxRefusals = 100;

static_assert(sizeof(FileOperation) % 8 == 0, "poisoning knows no finer grain");

absl::StatusOr<std::unique_ptr<FileBackend>> CreateBackend(Executor& executor) {
  absl::StatusOr<IoRing*> ring = executor.UseRing();
  if (ring.ok()) return RingBackend::Create(executor, **ring);
  return ThreadBackend::Create(executor, ring.status());
}

}  // namespace

// --- Awaiting ------------------------------------------------------------------------------------

FileAwaiter::~FileAwaiter() {
  Leave();
  if (opened_) service_.CloseDescriptor(result_);
}

void FileAwaiter::Finish(const FileOperation& operation, int32_t result) {
  operation_ = nullptr;
  result_ = result;
  opened_ = operation.request.kind == FileRequest::Kind::kOpen && result >= 0;
  if (operation.request.kind == FileRequest::Kind::kStat) stat_ = operation.stat;
  Resume();
}

void OpenFile::Drop() {
  const uint32_t before = references.fetch_sub(1, std::memory_order_acq_rel);
  VERBENA_CHECK(before > 0) << path << " was closed before its last user let go";
  if (before != 1) return;
  Executor& executor = service.executor();
  if (Scheduler::Current() == &executor) {
    service.Close(this);
  } else {
    executor.Post(*this);
  }
}

void OpenFile::Run() { service.Close(this); }

bool FileRequest::changes_files() const {
  switch (kind) {
    case Kind::kOpen:
      return (flags & (O_CREAT | O_TRUNC)) != 0;
    case Kind::kWrite:
    case Kind::kFallocate:
    case Kind::kRename:
    case Kind::kRemove:
    case Kind::kMakeDirectory:
      return true;
    case Kind::kRead:
    case Kind::kSync:
    case Kind::kDatasync:
    case Kind::kStat:
    case Kind::kClose:
      return false;
  }
  return true;
}

void FileOperation::OnComplete(int32_t its_result) { service_.OnComplete(*this, its_result); }

// --- The service ---------------------------------------------------------------------------------

absl::StatusOr<FileService*> FileService::Of(Scheduler& scheduler) {
  auto* executor = dynamic_cast<Executor*>(&scheduler);
  if (executor == nullptr) {
    return absl::FailedPreconditionError(
        "files are opened on an Executor, not on another scheduler");
  }
  if (ExecutorService* service = executor->file_service()) {
    return static_cast<FileService*>(service);
  }
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<FileBackend> backend, CreateBackend(*executor));
  return &Install(*executor, std::move(backend));
}

FileService& FileService::Install(Executor& executor, std::unique_ptr<FileBackend> backend) {
  VERBENA_CHECK(executor.file_service() == nullptr) << "the executor has its files already";
  auto* service = new FileService(executor, std::move(backend));
  executor.SetFileService(std::unique_ptr<ExecutorService>(service));
  return *service;
}

FileService::FileService(Executor& executor, std::unique_ptr<FileBackend> backend)
    : executor_(executor), backend_(std::move(backend)) {}

FileService::~FileService() {
  VERBENA_CHECK(in_flight_ == 0 && waiting_ == 0 && free_.size() == operations_.size())
      << in_flight_ << " operations are in flight, " << waiting_ << " wait, and " << free_.size()
      << " of " << operations_.size() << " are free";
  for (FileOperation* operation : free_) UnpoisonMemory(operation, sizeof(FileOperation));
}

void FileService::Stop() {
  stopped_ = true;
  for (const auto& operation : operations_) {
    UnpoisonMemory(operation.get(), sizeof(FileOperation));
    if (operation->awaiter != nullptr) Leave(*operation);
  }
  for (FileOperation* operation : free_) PoisonMemory(operation, sizeof(FileOperation));
  // After Leave(), only closes still wait in the queue.
  while (FileOperation* operation = queue_.PopFront()) {
    VERBENA_CHECK(operation->request.kind == FileRequest::Kind::kClose && waiting_ > 0)
        << "kind " << operation->request.kind << ", " << waiting_ << " wait";
    --waiting_;
    close(operation->request.fd);
    Recycle(*operation);
  }
  backend_->Stop(in_flight_);
}

FileOperation& FileService::Take() {
  if (free_.empty()) {
    operations_.push_back(std::make_unique<FileOperation>(*this));
    free_.reserve(operations_.size());
    return *operations_.back();
  }
  FileOperation* operation = free_.back();
  free_.pop_back();
  UnpoisonMemory(operation, sizeof(FileOperation));
  return *operation;
}

void FileService::Recycle(FileOperation& operation) {
  VERBENA_DCHECK(std::find(left_.begin(), left_.end(), &operation) == left_.end())
      << "memory is refused for an operation that has ended";
  // These two go last, because the last reference closes the file, and the last pin may wake
  // coroutines that wait for memory.
  FileReference file = std::move(operation.request.file);
  BufferPin pin = std::move(operation.pin);
  operation.request.part = {};
  PoisonMemory(&operation, sizeof(FileOperation));
  free_.push_back(&operation);
}

FileOperation& FileService::Start(FileRequest request, FileAwaiter* awaiter, WorkOwner* owner) {
  VERBENA_CHECK(!stopped_) << "an operation begins on files of an executor that ends";
  FileOperation& operation = Take();
  VERBENA_CHECK(operation.awaiter == nullptr && !operation.linked())
      << "an operation is used again before it has ended";
  operation.pin = BufferPin(request.part);
  operation.owner = request.changes_files() ? owner : nullptr;
  operation.request = std::move(request);
  operation.awaiter = awaiter;
  operation.refusals = 0;
  operation.cancelled.store(false, std::memory_order_relaxed);
  operation.started = in_flight_ < backend_->bound();
  if (operation.started) {
    ++in_flight_;
    backend_->Start(operation);
  } else {
    ++waiting_;
    queue_.PushBack(operation);
  }
  return operation;
}

void FileService::Leave(FileOperation& operation) {
  operation.awaiter = nullptr;
  // A close runs even if nobody waits for it.
  if (operation.request.kind == FileRequest::Kind::kClose) return;
  if (operation.started) {
    if (operation.owner != nullptr) operation.owner->OnChangeLeft();
    if (!operation.request.part.empty()) left_.push_back(&operation);
    backend_->Cancel(operation);
    return;
  }
  VERBENA_CHECK(operation.linked() && waiting_ > 0) << waiting_ << " operations wait";
  operation.IntrusiveNode<FileOperation>::Unlink();
  --waiting_;
  Recycle(operation);
}

bool FileService::Collides(BufferView part, FileRequest::Kind kind) const {
  const std::less<const char*> before;
  for (const FileOperation* operation : left_) {
    const FileRequest& left = operation->request;
    const bool apart = !before(left.part.data(), part.data() + part.size()) ||
                       !before(part.data(), left.part.data() + left.part.size());
    if (apart) continue;
    if (kind == FileRequest::Kind::kRead || left.kind == FileRequest::Kind::kRead) return true;
  }
  return false;
}

// An operation that a signal interrupted, or that the kernel had no memory for, has done nothing.
bool FileService::StartAgain(FileOperation& operation, int32_t result) {
  const FileRequest& request = operation.request;
  // A close has closed, whatever it says.
  if (operation.awaiter == nullptr || request.kind == FileRequest::Kind::kClose) return false;
  if (result == -EAGAIN) {
    const bool wanted =
        request.file ? request.file->nonblocking : (request.flags & O_NONBLOCK) != 0;
    if (wanted || ++operation.refusals > kMaxRefusals) return false;
  } else if (result != -EINTR) {
    return false;
  }
  backend_->Start(operation);
  return true;
}

void FileService::OnComplete(FileOperation& operation, int32_t result) {
  if (result < 0 && StartAgain(operation, result)) return;
  VERBENA_CHECK(operation.started && in_flight_ > 0)
      << "an operation of kind " << operation.request.kind << " ends twice";
  --in_flight_;
  WorkOwner* const owner = std::exchange(operation.owner, nullptr);
  if (FileAwaiter* awaiter = std::exchange(operation.awaiter, nullptr)) {
    awaiter->Finish(operation, result);
  } else {
    if (owner != nullptr) owner->OnLeftChangeEnded();
    if (!operation.request.part.empty()) {
      std::erase(left_, &operation);
    } else if (operation.request.kind == FileRequest::Kind::kOpen && result >= 0) {
      // Nobody else knows the descriptor.
      CloseDescriptor(result);
    }
  }
  Recycle(operation);
  StartWaiting();
}

void FileService::StartWaiting() {
  while (in_flight_ < backend_->bound()) {
    FileOperation* operation = queue_.PopFront();
    if (operation == nullptr) return;
    VERBENA_CHECK(waiting_ > 0) << in_flight_ << " operations are in flight";
    --waiting_;
    ++in_flight_;
    operation->started = true;
    backend_->Start(*operation);
  }
}

void FileService::Close(OpenFile* file) {
  VERBENA_CHECK(Scheduler::Current() == &executor_) << file->path << " closes on another thread";
  const std::unique_ptr<OpenFile> owned(file);
  if (owned->fd < 0) return;
  backend_->OnClosing(*owned);
  CloseDescriptor(owned->fd);
}

void FileService::CloseDescriptor(int fd) {
  if (stopped_) {
    close(fd);
    return;
  }
  Start({.kind = FileRequest::Kind::kClose, .fd = fd}, nullptr);
}

}  // namespace verbena::internal
