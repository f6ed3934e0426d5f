#include "verbena/transport/link/liveness_round.h"

#include "verbena/transport/link/endpoint_tasks.h"

namespace verbena::internal {
namespace {

// Slots and links that a round looks at before others have their turn. (start)
constexpr int kChecksPerTurn = 512;

}  // namespace

void LivenessRound::Start() {
  if (timer_running_) return;
  timer_running_ = true;
  executor_.StartTimer(*this, SaturatingAdd(executor_.now(), interval_));
}

void LivenessRound::Stop() {
  executor_.StopTimer(*this);
  timer_running_ = false;
}

void LivenessRound::OnTimer() {
  timer_running_ = false;
  if (!checking_) {
    context_.PollEventsIfUnattended();
    unchecked_.Append(watched_);
    unchecked_slot_ = 0;
  }
  checking_ = !CheckSome();
  if (checking_) {
    timer_running_ = true;
    executor_.StartTimer(*this, executor_.now());
  } else if (links_.count() > 0) {
    Start();
  }
}

bool LivenessRound::CheckSome() {
  const TimePoint now = executor_.now();
  int left = kChecksPerTurn;
  // Each link that is closed begins its teardown.
  const size_t most_tasks = teardowns_.size() + kTeardownStepsPerTurn;
  const auto may_go_on = [&] { return left-- > 0 && teardowns_.size() < most_tasks; };
  while (!unchecked_.empty()) {
    if (!may_go_on()) return false;
    WatchedLink* watched = unchecked_.PopFront();
    // A link that this closes may be gone afterwards.
    Link* link = static_cast<Link*>(watched);
    if (link->CheckLiveness(now) && !watched->linked()) watched_.PushBack(*watched);
  }
  for (; unchecked_slot_ < links_.slots().size(); ++unchecked_slot_) {
    if (!may_go_on()) return false;
    LinkSlot& slot = links_.slots()[unchecked_slot_];
    if (slot.link == nullptr) continue;
    slot.link->CheckUnwatched(now);
    slot.link->CheckIdle(now);
    lost_receives_.Check(slot);
  }
  return true;
}

}  // namespace verbena::internal
