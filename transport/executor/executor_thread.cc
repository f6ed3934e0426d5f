#include "verbena/transport/executor/executor_thread.h"
#include "verbena/transport/base/status_macros.h"

#include <pthread.h>

#include <string>
#include <system_error>
#include <utility>

namespace verbena {
namespace {

// The kernel keeps this much of a thread's name.
constexpr size_t kMaxNameBytes = 15;

}  // namespace

absl::StatusOr<std::unique_ptr<ExecutorThread>> ExecutorThread::Start(ExecutorOptions options) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                           Executor::Create(std::move(options)));
  try {
    return std::unique_ptr<ExecutorThread>(new ExecutorThread(std::move(executor)));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(std::string("an executor's thread: ") + error.what());
  }
}

ExecutorThread::ExecutorThread(std::unique_ptr<Executor> executor)
    : executor_(std::move(executor)), thread_([this] {
        pthread_setname_np(pthread_self(),
                           executor_->options().name.substr(0, kMaxNameBytes).c_str());
        executor_->Run();
      }) {}

ExecutorThread::~ExecutorThread() {
  executor_->Stop();
  thread_.join();
}

}  // namespace verbena
