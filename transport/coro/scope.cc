#include "verbena/transport/coro/scope.h"

#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/frame_pool.h"

namespace verbena {

// Allocated beside its Task's frame, and from the same pool.
class TaskScope::Child final : public internal::TaskListener,
                               public internal::IntrusiveNode<Child> {
 public:
  Child(TaskScope& scope, Task<void> task) : scope_(scope), task_(std::move(task)) {}

  static void* operator new(size_t bytes) { return internal::AllocateFrame(bytes); }
  static void operator delete(void* memory, size_t bytes) noexcept {
    internal::FreeFrame(memory, bytes);
  }

  void Start() { task_.StartLater(scope_.scheduler_, &scope_.cancel_, this); }

  std::exception_ptr Failure() {
    try {
      task_.TakeResult();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

 private:
  void OnTaskDone() override { scope_.ChildEnded(*this); }

  TaskScope& scope_;
  Task<void> task_;
};

TaskScope::TaskScope(Scheduler& scheduler, CancelScope* parent)
    : scheduler_(scheduler), cancel_(parent) {}

TaskScope::TaskScope(const TaskContext& context) : TaskScope(*context.scheduler, context.cancel) {}

TaskScope::~TaskScope() {
  while (Child* child = children_.PopFront()) delete child;
}

void TaskScope::Spawn(Task<void> task) {
  VERBENA_CHECK(scheduler_.MayBeUsedHere())
      << "a TaskScope spawns on another thread than its own: it serves one executor";
  auto* child = new Child(*this, std::move(task));
  children_.PushBack(*child);
  ++size_;
  child->Start();
}

void TaskScope::RequestCancel(absl::StatusCode reason) {
  // A scope without children may outlive its scheduler.
  VERBENA_CHECK(size_ == 0 || scheduler_.MayBeUsedHere())
      << "a TaskScope was cancelled on another thread than its own: post it to the executor, or "
         "use JoinHandle::RequestCancel()";
  cancel_.Request(reason);
}

void TaskScope::ChildEnded(Child& child) {
  if (std::exception_ptr failure = child.Failure(); failure && !exception_) exception_ = failure;
  VERBENA_DCHECK(child.linked() && size_ > 0) << "a child ended twice; " << size_ << " are left";
  child.Unlink();
  --size_;
  if (size_ == 0) {
    while (Joiner* joiner = joiners_.PopFront()) joiner->Resume();
  }
  // Last: a capture of the child may have been what kept this scope alive.
  delete &child;
}

void TaskScope::Joiner::ListenForCancel() {
  CancelScope* cancel = promise_->cancel;
  if (cancel == nullptr) return;
  if (cancel->requested()) {
    scope_.RequestCancel(cancel->reason());
  } else {
    cancel->Add(*this);
  }
}

void TaskScope::Joiner::Resume() {
  internal::CancelNode::Unlink();
  promise_->scheduler->Ready(*promise_);
}

void TaskScope::Joiner::await_resume() const {
  if (scope_.exception_) [[unlikely]]
    std::rethrow_exception(std::exchange(scope_.exception_, nullptr));
}

}  // namespace verbena
