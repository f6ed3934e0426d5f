#include "verbena/transport/executor/root_task.h"

#include "transport/executor/executor_impl.h"

namespace verbena::internal {

void RootTask::Run() {
  Executor::Impl& impl = *executor_->impl_;
  if (impl.closing) {
    Abandon();
    return;
  }
  impl.roots.PushBack(*this);
  StartTask();
}

}  // namespace verbena::internal
