#include "tests/support/manual_scheduler.h"

#include <limits>

#include "verbena/transport/base/check.h"

namespace verbena::internal {

ManualScheduler::ManualScheduler(TimePoint start) : clock_(start) { set_now(start); }

ManualScheduler::~ManualScheduler() {
  VERBENA_CHECK(timers_.empty()) << timers_.size() << " timers outlive their scheduler";
}

size_t ManualScheduler::RunUntilIdle() {
  CurrentScope current(*this);
  size_t total = 0;
  do {
    RunInbox();
    total += RunReady(std::numeric_limits<size_t>::max());
  } while (inbox_.load(std::memory_order_relaxed) != nullptr);
  return total;
}

bool ManualScheduler::RunOne() {
  CurrentScope current(*this);
  const bool had_inbox = inbox_.load(std::memory_order_relaxed) != nullptr;
  RunInbox();
  return RunReady(1) != 0 || had_inbox;
}

void ManualScheduler::AdvanceTo(TimePoint time) {
  RunUntilIdle();
  while (next_timer() <= time && FireNextTimers()) RunUntilIdle();
  MoveTo(time);
}

void ManualScheduler::AdvanceBy(Duration delay) { AdvanceTo(SaturatingAdd(now(), delay)); }

bool ManualScheduler::FireNextTimers() {
  if (timers_.empty()) return false;
  MoveTo(next_timer());
  RunTimersDue();
  return true;
}

TimePoint ManualScheduler::next_timer() const {
  return timers_.empty() ? kNever : timers_.begin()->first;
}

void ManualScheduler::StartTimer(Timer& timer, TimePoint when) {
  StopTimer(timer);
  timer.when = when;
  timers_.emplace(when, &timer);
}

void ManualScheduler::StopTimer(Timer& timer) {
  auto [first, last] = timers_.equal_range(timer.when);
  for (auto found = first; found != last; ++found) {
    if (found->second != &timer) continue;
    timers_.erase(found);
    return;
  }
}

void ManualScheduler::Post(InboxItem& item) {
  InboxItem* head = inbox_.load(std::memory_order_relaxed);
  do {
    item.next.store(head, std::memory_order_relaxed);
  } while (!inbox_.compare_exchange_weak(head, &item, std::memory_order_release,
                                         std::memory_order_relaxed));
}

void ManualScheduler::RunInbox() {
  InboxItem* newest = inbox_.exchange(nullptr, std::memory_order_acquire);
  InboxItem* oldest = nullptr;
  while (newest != nullptr) {
    InboxItem* next = newest->next.load(std::memory_order_relaxed);
    newest->next.store(oldest, std::memory_order_relaxed);
    oldest = newest;
    newest = next;
  }
  while (oldest != nullptr) {
    InboxItem* next = oldest->next.load(std::memory_order_relaxed);
    oldest->Run();  // may delete it
    oldest = next;
  }
}

// One by one: a timer may stop or start others.
void ManualScheduler::RunTimersDue() {
  CurrentScope current(*this);
  while (!timers_.empty() && timers_.begin()->first <= now()) {
    Timer* timer = timers_.begin()->second;
    timers_.erase(timers_.begin());
    timer->OnTimer();
  }
}

void ManualScheduler::MoveTo(TimePoint time) {
  if (time <= now()) return;
  clock_.store(time, std::memory_order_relaxed);
  set_now(time);
}

}  // namespace verbena::internal
