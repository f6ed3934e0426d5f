// TaskScope: Tasks that run beside their owner and end before it does.
//
// Owned by a coroutine's frame or by an object; used on its scheduler's thread. Children run in a
// cancel scope of their own, below `parent` when one is given. Spawn() never runs a child inline:
// it is queued. Join() waits until none is left. Destroying the scope abandons the children that
// still run: their Tasks are destroyed. Objects that children use must outlive the scope, so
// declare them before it.
//
// A child's exception comes out of Join(): the first one, when all have ended; the others are
// dropped, as are those of a scope that is never joined. The number of children is bounded by
// whoever spawns (a Semaphore). Spawning allocates nothing in steady state.
//
//   TaskScope scope(co_await CurrentContext());
//   for (Replica& replica : replicas) scope.Spawn(Send(replica, block));
//   scope.Spawn([&, id]() -> Task<> { … });   // captures live as long as the child
//   co_await scope.Join();
//
//   precondition                               how it is checked          test
//   Spawn, RequestCancel on its own thread     a check aborts             one_executor_test
//   Join() in a coroutine of its scheduler     a check aborts             one_executor_test
//   Spawn() of a Task that has not begun       a check aborts             task_test
//   not destroyed within one of its children   not checked

#ifndef VERBENA_TRANSPORT_CORO_SCOPE_H_
#define VERBENA_TRANSPORT_CORO_SCOPE_H_

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

class VERBENA_EXPORT TaskScope {
 public:
  class Joiner;

  explicit TaskScope(Scheduler& scheduler, CancelScope* parent = nullptr);
  explicit TaskScope(const TaskContext& context);
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;
  // Not from within one of its children.
  ~TaskScope();

  void Spawn(Task<void> task);

  // Spawns what `start()` returns; `start` and its captures live until that Task has ended.
  template <typename Start>
    requires std::is_invocable_r_v<Task<void>, Start&>
  void Spawn(Start start) {
    Spawn(internal::RunFunction(std::move(start)));
  }

  // co_await waits until no child is left, and throws the first exception of one. If the awaiting
  // coroutine is cancelled, the children are cancelled, and Join() still waits for them. The scope
  // can be used again afterwards.
  Joiner Join();

  // Asks all children, and those spawned later, to stop.
  void RequestCancel(absl::StatusCode reason = absl::StatusCode::kCancelled);

  // The children's scope, for other work that should stop with them.
  CancelScope& cancel_scope() { return cancel_; }
  size_t size() const { return size_; }

 private:
  class Child;

  void ChildEnded(Child& child);

  Scheduler& scheduler_;
  CancelScope cancel_;
  internal::IntrusiveList<Child> children_;
  size_t size_ = 0;
  internal::IntrusiveList<Joiner> joiners_;
  std::exception_ptr exception_;
};

// The await of Join(). Unlike other awaits it hands a cancellation on instead of ending.
class [[nodiscard]] VERBENA_EXPORT TaskScope::Joiner final
    : public internal::CancelNode,
      public internal::IntrusiveNode<Joiner> {
 public:
  using value_type = void;
  static constexpr bool kBorrows = true;

  explicit Joiner(TaskScope& scope) : scope_(scope) {}
  ~Joiner() override = default;

  bool await_ready() const noexcept { return scope_.size_ == 0; }
  template <typename Promise>
    requires std::derived_from<Promise, internal::PromiseBase>
  void await_suspend(std::coroutine_handle<Promise> coroutine) {
    promise_ = &coroutine.promise();
    VERBENA_CHECK(promise_->scheduler == &scope_.scheduler_)
        << "a TaskScope is joined by a coroutine of another executor: it serves one executor";
    ListenForCancel();
    scope_.joiners_.PushBack(*this);
  }
  void await_resume() const;

 private:
  friend class TaskScope;
  friend internal::PartsAccess;
  internal::AwaitParts<Joiner, TaskScope&> Parts() && {
    return internal::AwaitParts<Joiner, TaskScope&>(scope_);
  }
  void ListenForCancel();
  void OnCancel(absl::StatusCode reason) override { scope_.RequestCancel(reason); }
  void Resume();

  TaskScope& scope_;
  internal::PromiseBase* promise_ = nullptr;
};

inline TaskScope::Joiner TaskScope::Join() { return Joiner(*this); }

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_SCOPE_H_
