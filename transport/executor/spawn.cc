#include "verbena/transport/executor/spawn.h"

#include <chrono>
#include <exception>
#include <future>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {
namespace {

// Owns itself from its launch to the end of its Task.
class SpawnedTask final : public RootTask {
 public:
  explicit SpawnedTask(Task<void> task) : task_(std::move(task)) {}

  void Abandon() override { delete this; }

 private:
  ~SpawnedTask() override = default;

  void StartTask() override { task_.Start(executor(), nullptr, this); }
  void OnTaskDone() override { delete this; }

  Task<void> task_;
};

// Between two lines in the log about tasks that keep a shutdown waiting.
constexpr Duration kReportInterval = std::chrono::seconds(10);

Task<void> ReportWait(const TaskScope& scope, const std::string& owner) {
  while ((co_await Sleep(kReportInterval)).ok()) {
    VERBENA_LOG_LINE(
        kExecutor, kWarning,
        fmt::format("{} waits for {} of its tasks to end: a task must end once it is cancelled",
                    owner, scope.size()));
  }
}

}  // namespace

void JoinState::Begin(CancelScope& scope) {
  VERBENA_CHECK(scope_ == nullptr && !done()) << "a task of " << site_.function << " begins twice";
  scope_ = &scope;
  if (cancel_arrived_) scope.Request(cancel_reason_);
}

void JoinState::KeepException() {
  exception_ = std::current_exception();
  if (site_.failed_tasks != nullptr) {
    site_.failed_tasks->fetch_add(1, std::memory_order_relaxed);
  }
}

void JoinState::End() {
  VERBENA_CHECK(!done()) << "a task of " << site_.function << " ends twice";
  scope_ = nullptr;
  std::exception_ptr unheard;
  bool untaken = false;
  {
    // Notifies and posts under the lock: whoever waits may destroy its executor once it has left.
    std::lock_guard lock(mutex_);
    untaken = detached_;
    if (untaken) unheard = std::exchange(exception_, nullptr);
    done_.store(true, std::memory_order_release);
    if (home_ != nullptr) {
      references_.fetch_add(1, std::memory_order_relaxed);
      home_->Post(end_message_);
    }
    ended_.notify_one();
  }
  if (unheard) LogUnheard(unheard);
  if (untaken) DropResult();
  Drop();
}

void JoinState::RequestCancel(absl::StatusCode reason) {
  std::lock_guard lock(mutex_);
  if (done() || cancel_reason_ != absl::StatusCode::kOk) return;
  cancel_reason_ = reason;
  references_.fetch_add(1, std::memory_order_relaxed);
  site_.scheduler.Post(cancel_message_);
}

void JoinState::OnCancelArrived() {
  cancel_arrived_ = true;
  if (scope_ != nullptr) scope_->Request(cancel_reason_);
  Drop();
}

void JoinState::Wait() {
  if (site_.driver != nullptr && !done()) {
    site_.driver->DriveUntil([this] { return done(); });
    return;
  }
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return done(); });
}

bool JoinState::Await(Scheduler& home, Waiter& waiter) {
  std::lock_guard lock(mutex_);
  VERBENA_CHECK(waiter_ == nullptr) << "two await a task of " << site_.function;
  if (done()) return false;
  home_ = &home;
  waiter_ = &waiter;
  return true;
}

void JoinState::StopAwaiting() {
  std::lock_guard lock(mutex_);
  home_ = nullptr;
  waiter_ = nullptr;
}

void JoinState::OnEndArrived() {
  VERBENA_CHECK(done()) << "the end of a task of " << site_.function << " arrives before it ends";
  if (Waiter* waiter = std::exchange(waiter_, nullptr)) waiter->OnTaskEnded();
  Drop();
}

void JoinState::Detach() {
  std::exception_ptr unheard;
  bool ended = false;
  {
    std::lock_guard lock(mutex_);
    ended = done();
    if (ended) {
      unheard = std::exchange(exception_, nullptr);
    } else {
      detached_ = true;
    }
  }
  if (unheard) LogUnheard(unheard);
  if (ended) DropResult();
  Drop();
}

void JoinState::RethrowIfThrown() {
  if (exception_) [[unlikely]]
    std::rethrow_exception(std::exchange(exception_, nullptr));
}

absl::Status JoinState::AbandonedStatus() {
  return absl::CancelledError("the task was destroyed before it ended: its executor shut down");
}

void JoinState::ThrowAbandoned() { throw std::future_error(std::future_errc::broken_promise); }

void JoinState::LogUnheard(const std::exception_ptr& exception) const {
  std::string reason;
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    reason = error.what();
  } catch (...) {
    reason = "no std::exception";
  }
  VERBENA_LOG_LINE(kExecutor, kError,
                   fmt::format("a task given to {} threw: {}", site_.function, reason));
}

void JoinState::Drop() {
  const int references = references_.fetch_sub(1, std::memory_order_acq_rel);
  VERBENA_CHECK(references > 0) << references;
  if (references == 1) delete this;
}

Task<void> JoinLogged(TaskScope& scope, std::string owner) {
  TaskScope report(co_await CurrentContext());
  if (scope.size() > 0) report.Spawn(ReportWait(scope, owner));
  try {
    co_await scope.Join();
  } catch (const std::exception& error) {
    VERBENA_LOG_LINE(kExecutor, kError, fmt::format("a task of {} threw: {}", owner, error.what()));
  } catch (...) {
    VERBENA_LOG_LINE(kExecutor, kError, fmt::format("a task of {} threw", owner));
  }
}

void LaunchSpawned(Executor& executor, Task<void> root) {
  (new SpawnedTask(std::move(root)))->Launch(executor);
}

}  // namespace verbena::internal
