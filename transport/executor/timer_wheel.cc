#include "verbena/transport/executor/timer_wheel.h"

#include <algorithm>
#include <bit>

#include "verbena/transport/base/check.h"

namespace verbena::internal {
namespace {

// NextTimer() looks at this many timers of one slot before it settles for the slot's start.
constexpr int kLookedAt = 32;

}  // namespace

void TimerWheel::Start(Timer& timer, TimePoint when) {
  timer.Unlink();
  timer.when = when;
  Insert(timer);
  next_check_ = std::min(next_check_, when);
}

void TimerWheel::Insert(Timer& timer) {
  const uint64_t key = std::max(KeyOf(timer.when), position_);
  const uint64_t difference = key ^ position_;
  const int level = difference == 0 ? 0 : (std::bit_width(difference) - 1) / kBitsPerLevel;
  const int index = static_cast<int>(key >> (level * kBitsPerLevel)) & (kSlots - 1);
  slots_[level][index].PushBack(timer);
  occupied_[level] |= uint64_t{1} << index;
}

bool TimerWheel::FindFirst(Slot& slot) {
  for (int level = 0; level < kLevels; ++level) {
    while (occupied_[level] != 0) {
      const int index = std::countr_zero(occupied_[level]);
      if (slots_[level][index].empty()) {
        occupied_[level] &= occupied_[level] - 1;
        continue;
      }
      const int shift = level * kBitsPerLevel;
      // The digits above this level; shifting by 64 or more is undefined.
      const int above = shift + kBitsPerLevel;
      const uint64_t prefix = above >= 64 ? 0 : position_ >> above << above;
      slot = {.level = level, .index = index, .start = prefix | uint64_t(index) << shift};
      return true;
    }
  }
  return false;
}

void TimerWheel::Collect(uint64_t now, IntrusiveList<Timer>& due) {
  Slot slot;
  while (FindFirst(slot) && slot.start <= now) {
    VERBENA_DCHECK(slot.start >= position_)
        << "slot " << slot.index << " of level " << slot.level << " begins at " << slot.start
        << ", before " << position_;
    position_ = slot.start;
    occupied_[slot.level] &= ~(uint64_t{1} << slot.index);
    IntrusiveList<Timer>& timers = ListOf(slot);
    if (slot.level == 0) {
      due.Append(timers);
      continue;
    }
    while (Timer* timer = timers.PopFront()) Insert(*timer);
  }
  position_ = now;
}

size_t TimerWheel::Advance(TimePoint now) {
  if (KeyOf(now) < position_) return 0;
  IntrusiveList<Timer> due;
  Collect(KeyOf(now), due);
  Slot first;
  next_check_ = FindFirst(first) ? TimeOf(first.start) : kNever;
  size_t fired = 0;
  // Stopping one that is due takes it off this list.
  while (Timer* timer = due.PopFront()) {
    ++fired;
    VERBENA_DCHECK(timer->when <= now)
        << "a timer fires " << (timer->when - now).count() << " ns early";
    timer->OnTimer();
  }
  return fired;
}

TimePoint TimerWheel::NextTimer() {
  Slot first;
  if (!FindFirst(first)) {
    next_check_ = kNever;
    return kNever;
  }
  if (first.level == 0) return TimeOf(first.start);
  IntrusiveList<Timer> looked_at;
  IntrusiveList<Timer>& timers = ListOf(first);
  TimePoint earliest = kNever;
  for (int i = 0; i < kLookedAt && !timers.empty(); ++i) {
    Timer* timer = timers.PopFront();
    earliest = std::min(earliest, timer->when);
    looked_at.PushBack(*timer);
  }
  const bool looked_at_all = timers.empty();
  // Back in front of the rest, in the same order.
  looked_at.Append(timers);
  timers.Append(looked_at);
  return looked_at_all ? earliest : TimeOf(first.start);
}

}  // namespace verbena::internal
