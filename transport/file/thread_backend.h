// ThreadBackend: file operations by a few threads that block in system calls, if there is no
// io_uring. Internal to transport/file.
//
// Slower than RingBackend: two thread switches per operation. The threads take operations in order.
// An operation that has begun cannot be cancelled; a cancelled one that has not begun is dropped.
// The queue is bounded by bound(), beyond which the FileService keeps callers waiting.

#ifndef VERBENA_TRANSPORT_FILE_THREAD_BACKEND_H_
#define VERBENA_TRANSPORT_FILE_THREAD_BACKEND_H_

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/file/operation.h"

namespace verbena::internal {

class ThreadBackend final : public FileBackend {
 public:
  // `why` says why there is no ring, and is logged once. RESOURCE_EXHAUSTED when no thread can be
  // made.
  static absl::StatusOr<std::unique_ptr<FileBackend>> Create(Executor& executor,
                                                             const absl::Status& why);
  ~ThreadBackend() override;

  const char* name() const override { return "threads"; }
  size_t bound() const override;
  void Start(FileOperation& operation) override;
  void Cancel(FileOperation& operation) override;
  void Stop(const size_t& in_flight) override;

 private:
  // Once all that was begun has ended.
  void EndThreads();
  explicit ThreadBackend(Executor& executor) : executor_(executor) {}
  // False if the system has no more threads.
  bool AddThread();
  void Serve();

  Executor& executor_;
  std::mutex mutex_;  // guards queue_ and stopping_
  std::condition_variable changed_;
  IntrusiveList<FileOperation> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_FILE_THREAD_BACKEND_H_
