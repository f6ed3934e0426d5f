// Liveness: what a link's checks know of its peer: how long it has been silent, whether it takes
// what it is sent, and how long nothing has travelled.
//
// The link asks; this remembers and counts. Checks come every ping_interval / 2, and count: a host
// that was suspended itself must not blame its peers for the time. Part of a Link, on its
// executor's thread.
//
//   liveness.Hear();                           // a SEND has come
//   const bool heard = liveness.Check(now);    // every half ping_interval
//   if (liveness.Silence(now) >= interval && liveness.CountSilent()) Close(...);

#ifndef VERBENA_TRANSPORT_LINK_LIVENESS_H_
#define VERBENA_TRANSPORT_LINK_LIVENESS_H_

#include <cstdint>
#include <utility>

#include "verbena/transport/base/clock.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/send_slots.h"

namespace verbena::internal {

class Liveness {
 public:
  // The link opens.
  void Begin(TimePoint now) {
    last_heard_ = now;
    idle_since_ = now;
  }

  // --- silence

  // A SEND has come. Reads no clock: that costs as much as posting a WR.
  void Hear() { heard_ = true; }
  // Whether one has come since the last check.
  bool heard() const { return heard_; }
  // Begins a check. True if a SEND has come since the last one.
  bool Check(TimePoint now) {
    const bool heard = std::exchange(heard_, false);
    if (heard) last_heard_ = now;
    return heard;
  }
  // For how long nothing has come, to within a check.
  Duration Silence(TimePoint now) const { return now - last_heard_; }
  // Counts a check that found the peer silent when it should not be. True if that was once too
  // often.
  bool CountSilent() { return ++silent_checks_ > kMaxSilentChecks; }
  void ForgetSilence() { silent_checks_ = 0; }

  // --- what the peer takes

  // Waits for the latest WR that holds a buffer: once that one has ended, all earlier ones have. (A
  // peer that posts a receive now and then has each SEND retried for long, and all of them
  // succeed.) False when the peer has not taken it for kMaxUnacknowledgedChecks checks. `holds`: a
  // WR in the send queue holds a buffer. SENDs that are copied inline hold none, and may be
  // unsignalled. They are waited for only while they fill the send queue (`is_full`; one is then
  // signalled), and then for the first of them.
  bool CheckAcknowledged(const SendSlots& slots, bool holds, bool is_full) {
    const bool waits =
        checks_in_vain_ != 0 && static_cast<int32_t>(slots.completed() - awaited_) <= 0;
    if (!waits) {
      checks_in_vain_ = 0;
      if (!holds && !is_full) return true;
      awaited_ = holds ? slots.LastHolder() : slots.completed();
    }
    return ++checks_in_vain_ <= kMaxUnacknowledgedChecks;
  }
  bool awaits_acknowledgement() const { return checks_in_vain_ != 0; }
  // Whether slices of transfers move. `outstanding`: the send queue holds one; `ended` counts those
  // that have ended. False when none has ended for kMaxUnacknowledgedChecks checks.
  bool CheckTransfers(bool outstanding, uint32_t ended) {
    if (!outstanding || ended != slices_ended_) checks_of_slice_ = 0;
    slices_ended_ = ended;
    return !outstanding || ++checks_of_slice_ <= kMaxUnacknowledgedChecks;
  }

  // --- use

  // For how long the link has been idle. `traffic` counts what has travelled; `in_use`: it is not
  // idle though nothing travels.
  Duration IdleTime(TimePoint now, uint64_t traffic, bool in_use) {
    if (traffic != idle_traffic_ || in_use) {
      idle_traffic_ = traffic;
      idle_since_ = now;
    }
    return now - idle_since_;
  }
  // Counts idle time from now on.
  void RestartIdleTime(TimePoint now) { idle_since_ = now; }

 private:
  bool heard_ = false;
  TimePoint last_heard_{};
  uint32_t silent_checks_ = 0;
  uint32_t awaited_ = 0;          // the position of the WR that checks wait for
  uint32_t checks_in_vain_ = 0;   // how many have waited for it; 0: none is waited for
  uint32_t slices_ended_ = 0;     // at the last check
  uint32_t checks_of_slice_ = 0;  // that found none ended since the one before
  TimePoint idle_since_{};        // the last check that found the link in use
  uint64_t idle_traffic_ = 0;     // at that check
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LIVENESS_H_
