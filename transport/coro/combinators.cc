#include "verbena/transport/coro/combinators.h"

#include <utility>

#include "verbena/transport/base/check.h"

namespace verbena::internal {

ForEachRun::ForEachRun(const TaskContext& context, size_t concurrency)
    : places_(concurrency), scope_(context) {
  VERBENA_CHECK(concurrency > 0) << "ForEach with concurrency 0 would never start a Task";
}

void ForEachRun::Ended(absl::Status status) {
  if (status.ok() || failed()) return;
  failure_ = std::move(status);
  StopOthers();
}

void ForEachRun::Threw() {
  if (failed()) return;
  exception_ = std::current_exception();
  StopOthers();
}

void ForEachRun::StopOthers() { scope_.RequestCancel(); }

absl::Status ForEachRun::TakeResult() {
  VERBENA_DCHECK(scope_.size() == 0) << scope_.size() << " Tasks still run";
  if (exception_) [[unlikely]]
    std::rethrow_exception(std::exchange(exception_, nullptr));
  return std::move(failure_);
}

}  // namespace verbena::internal
