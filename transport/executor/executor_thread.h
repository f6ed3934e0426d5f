// ExecutorThread: an executor and the thread that runs it.
//
// The thread carries the executor's name. Destroying the object stops the executor, joins the
// thread and destroys the executor with what is left on it (Executor::~Executor), on the destroying
// thread, which must not be the executor's own.
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<ExecutorThread> thread,
//                            ExecutorThread::Start({.name = "io0", .cpu = 2}));
//   absl::Status status = BlockOn(thread->executor(), Work());

#ifndef VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_THREAD_H_
#define VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_THREAD_H_

#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "verbena/transport/executor/executor.h"

namespace verbena {

class ExecutorThread {
 public:
  // Fails as Executor::Create() does, or RESOURCE_EXHAUSTED when there can be no more threads.
  static absl::StatusOr<std::unique_ptr<ExecutorThread>> Start(ExecutorOptions options = {});
  ExecutorThread(const ExecutorThread&) = delete;
  ExecutorThread& operator=(const ExecutorThread&) = delete;
  ~ExecutorThread();

  Executor& executor() { return *executor_; }

 private:
  explicit ExecutorThread(std::unique_ptr<Executor> executor);

  const std::unique_ptr<Executor> executor_;
  std::thread thread_;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_THREAD_H_
