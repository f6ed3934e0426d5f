// Link: whether the peer is alive, answers recalls, and whether the link is used.

#include <chrono>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/log/mutant.h"

namespace verbena {

bool Link::CheckLiveness(TimePoint now) {
  if (!open()) return false;
  const bool heard = liveness_.Check(now);
  absl::Status status = leases_.CheckGrace(now);
  if (status.ok()) status = CheckRecall();
  if (status.ok()) status = CheckAcknowledged();
  if (status.ok()) status = CheckTransfers();
  if (!status.ok()) {
    Close(status);
    return false;
  }
  if (leases_.work_due()) ScheduleFlush();
  const Duration interval = endpoint_.limits().ping_interval;
  // One-sided operations on the peer's memory may wait for the peer as well, and coroutines for
  // them.
  const bool expects = listener_->ExpectsFrames() || transfers_.outstanding();
  if (!expects || liveness_.Silence(now) < interval) {
    liveness_.ForgetSilence();
    return expects || heard || flush_scheduled_ || issued_.recalled() ||
           liveness_.awaits_acknowledgement() || leases_.quarantined_bytes() != 0;
  }
  if (ping_is_held_up()) return true;
  if (liveness_.CountSilent()) {
    Close(absl::UnavailableError(fmt::format(
        "{} has not answered a PING for {} ms (process stopped, or host unreachable)", peer(),
        std::chrono::duration_cast<std::chrono::milliseconds>(liveness_.Silence(now)).count())));
    return false;
  }
  Ping();
  return true;
}

void Link::CheckIdle(TimePoint now) {
  const Duration timeout = endpoint_.limits().idle_timeout;
  if (!open() || timeout == Duration::zero() || VERBENA_MUTANT(kIdleLinkStays)) return;
  // Control frames are not use: the checks of either side could cause them for ever.
  const uint64_t control = VERBENA_MUTANT(kPingsKeepIdleLinks) ? 0 : control_.count;
  const uint64_t traffic =
      stats_.frames_sent + stats_.frames_received - control + stats_.transfers + stats_.atomics;
  const bool in_use = transfers_.outstanding() || listener_->InUse(*this);
  if (liveness_.IdleTime(now, traffic, in_use) < timeout) return;
  liveness_.RestartIdleTime(now);
  if (!listener_->OnIdle(*this)) return;
  Close(absl::CancelledError(
      fmt::format("nothing has travelled for {} s",
                  std::chrono::duration_cast<std::chrono::seconds>(timeout).count())));
}

absl::Status Link::CheckRecall() {
  if (!issued_.recalled() || VERBENA_MUTANT(kRecallUnanswered)) return absl::OkStatus();
  if (control_.recall && OthersHoldBuffers()) return absl::OkStatus();
  const bool is_due = control_.recall && !VERBENA_MUTANT(kUnsentRecallCounts);
  absl::Status status = issued_.CheckRecall(is_due);
  if (status.ok() && !issued_.recalled()) endpoint_.NoteRecallAnswered(*this);
  return status;
}

absl::Status Link::CheckAcknowledged() {
  const bool holds = held_ != pending_.size() && !VERBENA_MUTANT(kUnacknowledgedSendsKept);
  const bool is_full = slots_.in_flight() > 0 && !SlotsLeft() && !VERBENA_MUTANT(kFullQueueKept);
  if (liveness_.CheckAcknowledged(slots_, holds, is_full)) return absl::OkStatus();
  return absl::UnavailableError(
      fmt::format("{} has not taken a SEND for 4 x LinkLimits::ping_interval; {} work requests are "
                  "under way: its process is stopped, the path to it is broken, or it posts fewer "
                  "receives than it issues credits",
                  peer(), slots_.in_flight()));
}

absl::Status Link::CheckTransfers() {
  const bool outstanding = transfers_.outstanding() && !VERBENA_MUTANT(kCrawlingTransfersKept);
  if (liveness_.CheckTransfers(outstanding, transfers_.ended())) return absl::OkStatus();
  return absl::UnavailableError(
      fmt::format("no READ, WRITE or atomic operation on memory of {} has ended for 4 x "
                  "LinkLimits::ping_interval, though {} bytes are under way: its process is "
                  "stopped, the path to it is broken, or it answers too slowly",
                  peer(), transfers_.bytes_outstanding()));
}

void Link::Recall() {
  issued_.Recall();
  control_.recall = true;
  ScheduleFlush();
}

}  // namespace verbena
