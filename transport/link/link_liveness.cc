// Link: whether the peer is alive, answers recalls, and whether the link is used.

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/log/mutant.h"

namespace verbena {

bool Link::CheckLiveness(TimePoint now) {
  if (!open()) return false;
  const bool heard = std::exchange(heard_, false);
  if (heard) last_heard_ = now;
  absl::Status status = leases_.CheckGrace(now);
  if (status.ok()) status = CheckRecall();
  if (status.ok()) status = CheckAcknowledged();
  if (!status.ok()) {
    Close(status);
    return false;
  }
  if (leases_.work_due()) ScheduleFlush();
  const Duration interval = endpoint_.limits().ping_interval;
  // One-sided operations on the peer's memory may wait for the peer as well, and coroutines for
  // them.
  const bool expects = sink_->ExpectsFrames() || one_sided_.outstanding();
  if (!expects || now - last_heard_ < interval) {
    silent_checks_ = 0;
    return expects || heard || flush_scheduled_ || grants_.recalled() || checks_in_vain_ != 0 ||
           leases_.quarantined_bytes() != 0;
  }
  // The last PING has not left, since other links hold all send buffers: no silence of this peer.
  if (ping_due_ && lacks_room_ && held_ == 0) return true;
  // Counted in checks, not in time alone: a host that was suspended itself must not blame its peer.
  if (++silent_checks_ > 6) {
    Close(absl::UnavailableError(fmt::format(
        "{} has not answered a PING for {} ms (process stopped, or host unreachable)", peer_,
        std::chrono::duration_cast<std::chrono::milliseconds>(now - last_heard_).count())));
    return false;
  }
  ping_due_ = true;
  ScheduleFlush();
  return true;
}

void Link::CheckIdle(TimePoint now) {
  const Duration timeout = endpoint_.limits().idle_timeout;
  if (!open() || timeout == Duration::zero() || VERBENA_MUTANT(kIdleLinkStays)) return;
  // Control frames are no use of the link: a check of either side may bring them about for ever.
  const uint64_t control = VERBENA_MUTANT(kPingsKeepIdleLinks) ? 0 : control_frames_;
  const uint64_t traffic =
      stats_.frames_sent + stats_.frames_received - control + stats_.transfers + stats_.atomics;
  if (traffic != idle_traffic_ || one_sided_.outstanding() || sink_->InUse(*this)) {
    idle_traffic_ = traffic;
    idle_since_ = now;
    return;
  }
  if (now - idle_since_ < timeout) return;
  idle_since_ = now;
  if (!sink_->OnIdle(*this)) return;
  Close(absl::CancelledError(
      fmt::format("nothing has travelled for {} s",
                  std::chrono::duration_cast<std::chrono::seconds>(timeout).count())));
}

absl::Status Link::CheckRecall() {
  if (!grants_.recalled() || VERBENA_MUTANT(kRecallUnanswered)) return absl::OkStatus();
  absl::Status status = grants_.CheckRecall();
  if (status.ok() && !grants_.recalled()) endpoint_.NoteRecallAnswered(*this);
  return status;
}

uint32_t Link::LastHolder() const {
  uint32_t position = posted_ - 1;
  while (position != completed_ && slots_[position & (slots_.size() - 1)] == SendBuffers::kNone) {
    --position;
  }
  return position;
}

// A peer that posts a receive now and then has each SEND retried for long, and all of them succeed.
// So the checks wait for the latest one that is under way: behind it all earlier ones have ended.
// SENDs that are copied inline hold no buffer, and may be unsignalled: nobody waits for these.
absl::Status Link::CheckAcknowledged() {
  const bool waits = checks_in_vain_ != 0 && static_cast<int32_t>(completed_ - awaited_) <= 0;
  if (!waits) {
    checks_in_vain_ = 0;
    if (held_ == pending_.size() || VERBENA_MUTANT(kUnacknowledgedSendsKept)) {
      return absl::OkStatus();
    }
    awaited_ = LastHolder();
  }
  if (++checks_in_vain_ <= kMaxUnacknowledgedChecks) return absl::OkStatus();
  return absl::UnavailableError(
      fmt::format("{} has not taken a SEND for 4 x LinkLimits::ping_interval; {} work requests are "
                  "under way: its process is stopped, the path to it is broken, or it posts fewer "
                  "receives than it grants credits",
                  peer_, posted_ - completed_));
}

void Link::Recall() {
  grants_.Recall();
  recall_due_ = true;
  ScheduleFlush();
}

}  // namespace verbena
