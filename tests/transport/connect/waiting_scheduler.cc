#include "tests/transport/connect/waiting_scheduler.h"

#include <chrono>
#include <cstddef>
#include <deque>
#include <mutex>
#include <stdexcept>

namespace verbena::internal {

void WaitingScheduler::AdvanceBy(Duration delay) {
  set_now(SaturatingAdd(now(), delay));
  RunPending();
}

void WaitingScheduler::RunPending() {
  CurrentScope current(*this);
  while (RunTurn()) {
  }
}

void WaitingScheduler::StartTimer(Timer& timer, TimePoint when) {
  timer.when = when;
  timers_.emplace(when, &timer);
}

void WaitingScheduler::StopTimer(Timer& timer) {
  auto [first, last] = timers_.equal_range(timer.when);
  for (auto found = first; found != last; ++found) {
    if (found->second == &timer) {
      timers_.erase(found);
      return;
    }
  }
}

void WaitingScheduler::Post(InboxItem& item) {
  // Notifies under the lock: the scheduler may be gone right after it has run the item.
  std::lock_guard lock(mutex_);
  inbox_.push_back(&item);
  posted_.notify_one();
}

void WaitingScheduler::WaitForPosts(size_t count) {
  std::unique_lock lock(mutex_);
  const bool posted =
      posted_.wait_for(lock, std::chrono::minutes(1), [&] { return inbox_.size() >= count; });
  if (!posted) throw std::runtime_error("too little was posted in a minute");
}

bool WaitingScheduler::RunTurn() {
  if (time_ == Time::kReal) set_now(Clock::Real().Now());
  bool worked = false;
  while (!timers_.empty() && timers_.begin()->first <= now()) {
    Timer* timer = timers_.begin()->second;
    timers_.erase(timers_.begin());
    timer->OnTimer();
    worked = true;
  }
  std::deque<InboxItem*> items;
  {
    std::lock_guard lock(mutex_);
    items.swap(inbox_);
  }
  for (InboxItem* item : items) item->Run();
  return RunReady(1000) > 0 || worked || !items.empty();
}

void WaitingScheduler::Sleep(TimePoint limit) {
  if (time_ == Time::kReal && !timers_.empty() && timers_.begin()->first < limit) {
    limit = timers_.begin()->first;
  }
  std::unique_lock lock(mutex_);
  posted_.wait_until(lock, limit, [&] { return !inbox_.empty(); });
}

}  // namespace verbena::internal
