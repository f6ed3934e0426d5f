// Link and its LinkSender: whether the peer is alive, answers recalls, and whether the link is
// used.

#include <chrono>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/link_sender.h"

namespace verbena::internal {

bool Link::CheckLiveness(TimePoint now) {
  if (!open()) return false;
  const bool heard = liveness_.Check(now);
  absl::Status status = sender_.leases().table().CheckGrace(now);
  if (status.ok()) status = sender_.CheckRecall();
  if (status.ok()) status = CheckAcknowledged();
  if (status.ok()) status = CheckTransfers();
  if (!status.ok()) {
    Close(status);
    return false;
  }
  if (leases().work_due()) sender_.ScheduleFlush();
  const Duration interval = endpoint_.limits().ping_interval;
  // One-sided operations on the peer's memory may wait for the peer as well, and coroutines for
  // them.
  const bool expects =
      listener_->ExpectsFrames() || sender_.transfers().outstanding() || KeepAliveDue(now);
  if (!expects || liveness_.Silence(now) < interval) {
    liveness_.ForgetSilence();
    return expects || heard || sender_.flush_scheduled() || issued().recalled() ||
           liveness_.awaits_acknowledgement() || leases().quarantined_bytes() != 0;
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

bool Link::KeepAliveDue(TimePoint now) const {
  const Duration interval = endpoint_.limits().keep_alive_interval;
  return interval != Duration::zero() && liveness_.Silence(now) >= interval;
}

void Link::CheckUnwatched(TimePoint now) {
  // A link that is watched is checked anyway.
  if (!open() || WatchedLink::linked()) return;
  // Sending begins the watch, but a call may wait for its client before it has sent anything.
  bool is_due = listener_->ExpectsFrames();
  if (endpoint_.limits().keep_alive_interval != Duration::zero()) {
    (void)liveness_.Check(now);
    is_due = is_due || KeepAliveDue(now);
  }
  if (is_due) endpoint_.WatchLiveness(*this);
}

void Link::CheckIdle(TimePoint now) {
  const Duration timeout = endpoint_.limits().idle_timeout;
  if (!open() || timeout == Duration::zero()) return;
  // Control frames are not use: the checks of either side could cause them for ever.
  const uint64_t control = sender_.control_count();
  const uint64_t traffic =
      stats().frames_sent + stats().frames_received - control + stats().transfers + stats().atomics;
  const bool in_use = sender_.transfers().outstanding() || listener_->InUse(*this);
  if (liveness_.IdleTime(now, traffic, in_use) < timeout) return;
  liveness_.RestartIdleTime(now);
  if (!listener_->OnIdle(*this)) return;
  Close(absl::CancelledError(
      fmt::format("nothing has travelled for {} s",
                  std::chrono::duration_cast<std::chrono::seconds>(timeout).count())));
}

absl::Status LinkSender::CheckRecall() {
  if (!issued_.recalled()) return absl::OkStatus();
  if (control_.recall && OthersHoldBuffers()) return absl::OkStatus();
  absl::Status status = issued_.CheckRecall(control_.recall);
  if (status.ok() && !issued_.recalled()) NoteRecallAnswered();
  return status;
}

absl::Status Link::CheckAcknowledged() {
  const LinkSendQueue& sends = sender_.queue();
  const SendSlots& slots = sends.slots();
  const bool is_full = slots.in_flight() > 0 && !sender_.SlotsLeft();
  if (liveness_.CheckAcknowledged(slots, sends.holds_posted(), is_full)) return absl::OkStatus();
  return absl::UnavailableError(
      fmt::format("{} has not taken a SEND for 4 x LinkLimits::ping_interval; {} work requests are "
                  "under way: its process is stopped, the path to it is broken, or it posts fewer "
                  "receives than it issues credits",
                  peer(), slots.in_flight()));
}

absl::Status Link::CheckTransfers() {
  const TransferQueue& transfers = sender_.transfers();
  if (liveness_.CheckTransfers(transfers.outstanding(), transfers.ended())) return absl::OkStatus();
  return absl::UnavailableError(
      fmt::format("no READ, WRITE or atomic operation on memory of {} has ended for 4 x "
                  "LinkLimits::ping_interval, though {} bytes are under way: its process is "
                  "stopped, the path to it is broken, or it answers too slowly",
                  peer(), transfers.bytes_outstanding()));
}

void LinkSender::Recall() {
  issued_.Recall();
  control_.recall = true;
  ScheduleFlush();
}

}  // namespace verbena::internal
