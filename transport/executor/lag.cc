#include "verbena/transport/executor/lag.h"

namespace verbena::internal {

void Lag::OnFullPoll() {
  const TimePoint now = clock_.Now();
  OnReading(now);
  const bool goes_on = full_turn_ != 0 && turns_ - full_turn_ <= 1;
  full_turn_ = turns_;
  if (!goes_on) {
    full_since_ = now;
  } else if (now - full_since_ > kMost) {
    Tell();
  }
}

bool Lag::OnLook(TimePoint begin, TimePoint now) {
  if (now - begin <= kMost) return false;
  Tell();
  return true;
}

void Lag::Tell() {
  IntrusiveList<LagListener> told;
  told.Append(listeners_);
  while (LagListener* listener = told.PopFront()) {
    listeners_.PushBack(*listener);
    listener->OnLag();
  }
}

}  // namespace verbena::internal
