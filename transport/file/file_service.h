// FileService: an executor's file operations, their bound and their backend. Internal to
// transport/file.
//
// Made for the first operation on a file or its name. The executor owns it. More operations than
// the backend's bound wait here, first in, first out; the list is bounded by the Tasks that wait
// and the files that are closed. Operations are reused, and poisoned while free. One thread.

#ifndef VERBENA_TRANSPORT_FILE_FILE_SERVICE_H_
#define VERBENA_TRANSPORT_FILE_FILE_SERVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "verbena/transport/base/intrusive_list.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/executor_service.h"
#include "verbena/transport/file/file_backend.h"
#include "verbena/transport/file/file_operation.h"

namespace verbena::internal {

class FileService final : public ExecutorService {
 public:
  // The executor's FileService, made now if there is none. FAILED_PRECONDITION for another
  // scheduler.
  static absl::StatusOr<FileService*> Of(Scheduler& scheduler);
  // Makes it with `backend`. Precondition: the executor has none yet.
  static FileService& Install(Executor& executor, std::unique_ptr<FileBackend> backend);
  ~FileService() override;

  FileService(const FileService&) = delete;
  FileService& operator=(const FileService&) = delete;

  // Starts an operation, which completes in a later turn and then tells the awaiter, unless the
  // awaiter has left. Whatever the request refers to need only outlive this call: the operation
  // keeps it.
  FileOperation& Start(FileRequest request, FileAwaiter* awaiter);
  // Nobody waits for `operation` any more: asks it to end, unless it is a close.
  void Leave(FileOperation& operation);

  Executor& executor() const { return executor_; }
  FileBackend& backend() const { return *backend_; }
  size_t in_flight() const { return in_flight_; }
  size_t waiting() const { return waiting_; }

  // For FileOperation.
  void OnComplete(FileOperation& operation, int32_t result);
  // For FileReference: the last one is gone.
  void Close(OpenFile* file);
  void CloseDescriptor(int fd);

 private:
  FileService(Executor& executor, std::unique_ptr<FileBackend> backend);
  void Stop() override;

  FileOperation& Take();
  void Recycle(FileOperation& operation);
  bool StartAgain(FileOperation& operation, int32_t result);
  void StartWaiting();

  Executor& executor_;
  std::unique_ptr<FileBackend> backend_;
  std::vector<std::unique_ptr<FileOperation>> operations_;
  std::vector<FileOperation*> free_;
  IntrusiveList<FileOperation> queue_;
  size_t in_flight_ = 0;
  size_t waiting_ = 0;
  bool stopped_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_FILE_FILE_SERVICE_H_
