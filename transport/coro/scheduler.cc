#include "verbena/transport/coro/scheduler.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace verbena {
namespace {

// The schedulers that exist, by their ids.
struct SchedulerIds {
  std::mutex mutex;
  uint64_t last = 0;
  std::vector<uint64_t> ids;
};

// Never freed: a scheduler may end after the program's other static objects.
SchedulerIds& TheIds() {
  static SchedulerIds& ids = *new SchedulerIds;
  return ids;
}

uint64_t Register() {
  SchedulerIds& known = TheIds();
  std::lock_guard<std::mutex> lock(known.mutex);
  known.ids.push_back(++known.last);
  return known.last;
}

// Never kept across a suspension: a coroutine may not assume which thread computed its address.
thread_local Scheduler* current_scheduler = nullptr;

}  // namespace

Scheduler::Scheduler() : id_(Register()) {}

Scheduler::~Scheduler() {
  SchedulerIds& known = TheIds();
  std::lock_guard<std::mutex> lock(known.mutex);
  std::erase(known.ids, id_);
}

bool Scheduler::Exists(uint64_t id) {
  SchedulerIds& known = TheIds();
  std::lock_guard<std::mutex> lock(known.mutex);
  return std::ranges::find(known.ids, id) != known.ids.end();
}

Scheduler* Scheduler::Current() { return current_scheduler; }

size_t Scheduler::RunReady(size_t max) {
  VERBENA_DCHECK(current_scheduler == this) << "coroutines would run as those of another scheduler";
  size_t count = 0;
  while (count < max) {
    internal::ReadyNode* node = ready_.PopFront();
    if (node == nullptr) break;
    ++count;
    VERBENA_DCHECK(!node->handle.done()) << "a coroutine ended while it was queued";
    if constexpr (VERBENA_TAIL_CALLS) {
      node->handle.resume();
    } else {
      ResumeAll(node->handle);
    }
  }
  return count;
}

Scheduler::CurrentScope::CurrentScope(Scheduler& scheduler)
    : scheduler_(scheduler),
      outer_(current_scheduler),
      entered_before_(scheduler.entered_.load(std::memory_order_relaxed)) {
  current_scheduler = &scheduler;
  scheduler.entered_.store(true, std::memory_order_relaxed);
}

Scheduler::CurrentScope::~CurrentScope() {
  scheduler_.entered_.store(entered_before_, std::memory_order_relaxed);
  current_scheduler = outer_;
}

}  // namespace verbena
