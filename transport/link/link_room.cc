// LinkSender: frames that wait for the peer's credits, for send queue slots, or for send buffers.

#include "verbena/transport/base/check.h"
#include "verbena/transport/base/waiter_queue.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/link_sender.h"

namespace verbena::internal {

void LinkSender::AwaitWritable(SendWaiter& waiter) {
  VERBENA_CHECK(open()) << "a frame for " << link_.peer() << " waits, state " << link_.state();
  VERBENA_CHECK(!waiter.linked()) << "a frame for " << link_.peer() << " waits already";
  VERBENA_CHECK(waiter.body_bytes <= max_body_bytes())
      << "a body of " << waiter.body_bytes << " bytes, at most " << max_body_bytes();
  if (state_ == State::kUntilReady) {
    // AllowSends() wakes it.
  } else if (writers_.empty()) {
    if (credits_.available() == 0) {
      ++stats_.credit_waits;
    } else {
      ++stats_.slot_waits;
      LackRoom();
    }
  } else {
    ++stats_.credit_waits;
  }
  writers_.Add(waiter);
  ScheduleFlush();
}

void LinkSender::AllowSends() {
  VERBENA_CHECK(state_ == State::kUntilReady) << "SENDs are not held back";
  state_ = State::kFree;
  ScheduleFlush();
  WakeWriters();
  // The frames that still wait now wait for credits or room, and count as such.
  WaiterQueue<SendWaiter> waiting;
  writers_.MoveTo(waiting);
  while (!waiting.empty()) {
    waiting.ServeFirst([this](SendWaiter& first) { AwaitWritable(first); });
  }
}

// A link that holds slots or buffers is woken by a completion of its own, and then sees what its
// share is. A link that holds no buffer has no completion to wait for.
void LinkSender::LackRoom() {
  lacks_room_ = true;
  if (queue_.held() == 0 && SlotsLeft()) endpoint_.AwaitSendRoom(*this, queue_.source());
}

// Its control frames and the credits that it returns leave with a flush.
void LinkSender::OnRoom() {
  if (lacks_room_) ScheduleFlush();
  WakeWriters();
}

}  // namespace verbena::internal
