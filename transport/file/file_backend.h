// FileBackend: how an executor's file operations reach the kernel. Internal to transport/file.
//
// Owned by the executor's FileService; one thread. Every operation that was started completes
// (FileOperation::OnComplete), in a later turn and never inline, also when it was cancelled.

#ifndef VERBENA_TRANSPORT_FILE_FILE_BACKEND_H_
#define VERBENA_TRANSPORT_FILE_FILE_BACKEND_H_

#include <cstddef>

#include "verbena/transport/file/file_operation.h"

namespace verbena::internal {

class FileBackend {
 public:
  virtual ~FileBackend() = default;

  // "io_uring" or "threads".
  virtual const char* name() const = 0;
  // The most operations that may be started and not complete.
  virtual size_t bound() const = 0;

  virtual void Start(FileOperation& operation) = 0;
  // Asks that it end soon.
  virtual void Cancel(FileOperation& operation) = 0;
  // OnOpened(): a file was opened, and may be registered. OnClosing(): the file is about to be
  // closed, with no operation on it.
  virtual void OnOpened(OpenFile&) {}
  virtual void OnClosing(OpenFile&) {}
  // Blocks until every operation has completed, or its completion is in the executor's inbox.
  // Operations that have not begun may be dropped, except closes.
  virtual void Stop() = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_FILE_FILE_BACKEND_H_
