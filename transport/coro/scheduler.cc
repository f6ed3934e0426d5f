#include "verbena/transport/coro/scheduler.h"

namespace verbena {
namespace {

// Never kept across a suspension: a coroutine may not assume which thread computed its address.
thread_local Scheduler* current_scheduler = nullptr;

}  // namespace

Scheduler* Scheduler::Current() { return current_scheduler; }

size_t Scheduler::RunReady(size_t max) {
  VERBENA_DCHECK(current_scheduler == this) << "coroutines would run as those of another scheduler";
  size_t count = 0;
  while (count < max) {
    internal::ReadyNode* node = ready_.PopFront();
    if (node == nullptr) break;
    ++count;
    VERBENA_DCHECK(!node->handle.done()) << "a coroutine ended while it was queued";
    node->handle.resume();
  }
  return count;
}

Scheduler::CurrentScope::CurrentScope(Scheduler* scheduler) : outer_(current_scheduler) {
  current_scheduler = scheduler;
}

Scheduler::CurrentScope::~CurrentScope() { current_scheduler = outer_; }

}  // namespace verbena
