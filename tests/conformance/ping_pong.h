// PingPongLoop: one side of a ping-pong, polling or sleeping between messages.
//
// The loop sleeps as every event-driven verbs program must: it arms, polls again, and only then
// waits. If the device loses a wake-up, the loop ends with a message that says so. It polls one
// completion at a time, so a device that always reports receives first would fill the loop's send
// queue.

#ifndef VERBENA_TESTS_CONFORMANCE_PING_PONG_H_
#define VERBENA_TESTS_CONFORMANCE_PING_PONG_H_

#include <infiniband/verbs.h>

#include <cstdint>

#include "absl/status/status.h"
#include "tests/conformance/objects.h"
#include "tests/conformance/patience.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal::conformance {

class PingPongLoop {
 public:
  // `channel` is null unless plan.events.
  PingPongLoop(Device& device, ibv_qp* qp, ibv_cq* cq, ibv_comp_channel* channel,
               const PingPong& plan)
      : device_(device),
        qp_(qp),
        cq_(cq),
        channel_(channel),
        plan_(plan),
        deadline_(plan.timeout_ms) {}

  absl::Status Run();

 private:
  absl::Status Send();
  absl::Status PostReceive(uint64_t slot);
  // Waits until one more message has arrived, and checks that it is the one due.
  absl::Status AwaitMessage();
  absl::Status Consume(const ibv_wc& wc);
  // Polls once. Finding nothing is no error.
  absl::StatusOr<int> Poll();
  absl::Status Sleep();
  absl::Status TimedOut();
  char* Slot(uint64_t index) const;

  Device& device_;
  ibv_qp* const qp_;
  ibv_cq* const cq_;
  ibv_comp_channel* const channel_;
  const PingPong plan_;
  const TimeLimit deadline_;
  uint64_t sent_ = 0;
  uint64_t send_completions_ = 0;
  uint64_t received_ = 0;
};

}  // namespace verbena::internal::conformance

#endif  // VERBENA_TESTS_CONFORMANCE_PING_PONG_H_
