// LeaseTerm: how long a server may act as a holder of its lease in etcd.
//
// The term counts on the server's own clock, from before the request that renewed the lease was
// sent: so it ends before etcd's own count does, however late the answer came. The margin covers
// clocks of different speeds. Etcd's clock and this one are never compared. A value; one thread.
//
//   const TimePoint sent = clock.Now();
//   auto kept = co_await etcd.KeepAlive(lease);
//   if (kept.ok()) term.Renew(sent, kept->ttl);
//   …
//   if (!term.Holds(clock.Now())) … serve nobody …

#ifndef VERBENA_EXAMPLES_REPLICATED_KV_LEASE_TERM_H_
#define VERBENA_EXAMPLES_REPLICATED_KV_LEASE_TERM_H_

#include <time.h>

#include <algorithm>
#include <chrono>

#include "verbena/rpc/task.h"

namespace replicated_kv {

// The clock of terms. It counts while the machine is suspended, too, as etcd's does. steady_clock
// stands still then, and a server that wakes up would go on under a lease that is over.
class BootClock final : public verbena::Clock {
 public:
  verbena::TimePoint Now() override {
    timespec now = {};
    clock_gettime(CLOCK_BOOTTIME, &now);  // each Linux has it
    return verbena::TimePoint(std::chrono::seconds(now.tv_sec) +
                              std::chrono::nanoseconds(now.tv_nsec));
  }
  static verbena::Clock& Get() {
    static BootClock clock;
    return clock;
  }
};

class LeaseTerm {
 public:
  // The margin is one part in so many of the lease's time to live.
  static constexpr int kMarginPart = 10;

  // The lease was renewed for `ttl` by a request that was sent at `sent`.
  void Renew(verbena::TimePoint sent, verbena::Duration ttl) {
    // An older answer that comes late does not shorten it.
    until_ = std::max(until_, verbena::SaturatingAdd(sent, ttl - ttl / kMarginPart));
  }
  // The lease has ended.
  void End() { until_ = verbena::TimePoint(); }

  bool Holds(verbena::TimePoint now) const { return now < until_; }
  verbena::TimePoint until() const { return until_; }

 private:
  verbena::TimePoint until_{};
};

}  // namespace replicated_kv

#endif  // VERBENA_EXAMPLES_REPLICATED_KV_LEASE_TERM_H_
