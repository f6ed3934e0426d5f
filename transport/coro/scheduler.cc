#include "verbena/transport/coro/scheduler.h"

namespace verbena {
namespace {

// Never kept across a suspension: a coroutine may not assume which thread computed its address.
thread_local Scheduler* current_scheduler = nullptr;

}  // namespace

Scheduler* Scheduler::Current() { return current_scheduler; }

size_t Scheduler::RunReady(size_t max) {
  size_t count = 0;
  while (count < max) {
    internal::ReadyNode* node = ready_.PopFront();
    if (node == nullptr) break;
    ++count;
    node->handle.resume();
  }
  return count;
}

Scheduler::CurrentScope::CurrentScope(Scheduler* scheduler) : outer_(current_scheduler) {
  current_scheduler = scheduler;
}

Scheduler::CurrentScope::~CurrentScope() { current_scheduler = outer_; }

}  // namespace verbena
