// LivenessRound: checks the links of one endpoint, twice in each LinkLimits::ping_interval.
//
// A round looks at the links that wait for something. Then it goes through all slots, closes links
// that were idle for too long, and looks for lost receives. It is spread over turns of the
// executor: a host that vanishes takes a thousand links along, and closing them must not delay
// other links. The timer runs while the endpoint has links. Part of an Endpoint, on its executor's
// thread.

#ifndef VERBENA_TRANSPORT_LINK_LIVENESS_ROUND_H_
#define VERBENA_TRANSPORT_LINK_LIVENESS_ROUND_H_

#include <cstddef>

#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/link_table.h"
#include "verbena/transport/link/receives.h"

namespace verbena::internal {

class LivenessRound final : private Timer {
 public:
  // All outlive it. `teardowns` has the teardown of each link that a check closes.
  LivenessRound(Executor& executor, DeviceContext& context, LinkTable& links,
                LostReceives& lost_receives, const TaskScope& teardowns, Duration interval)
      : executor_(executor),
        context_(context),
        links_(links),
        lost_receives_(lost_receives),
        teardowns_(teardowns),
        interval_(interval) {}

  // The next round looks at `link`.
  void Watch(WatchedLink& link) { watched_.PushBack(link); }
  // Does nothing if the timer runs.
  void Start();
  void Stop();

 private:
  void OnTimer() override;
  // Returns false if links are left for the next turn.
  bool CheckSome();

  Executor& executor_;
  DeviceContext& context_;
  LinkTable& links_;
  LostReceives& lost_receives_;
  const TaskScope& teardowns_;
  const Duration interval_;
  IntrusiveList<WatchedLink> watched_;
  // The round under way has yet to look at these, and at the slots from here on.
  IntrusiveList<WatchedLink> unchecked_;
  size_t unchecked_slot_ = 0;
  bool checking_ = false;
  bool timer_running_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_LIVENESS_ROUND_H_
