#include "verbena/transport/coro/mailbox.h"

#include <memory>
#include <mutex>
#include <utility>

#include "verbena/transport/base/check.h"

namespace verbena::internal {

std::shared_ptr<RemoteWake> RemoteWake::Arm(Scheduler& scheduler, Waiter& waiter) {
  return std::shared_ptr<RemoteWake>(new RemoteWake(scheduler, waiter));
}

void RemoteWake::Wake() {
  // Posting stays under the lock: once Disarm() has returned, the scheduler may be destroyed.
  std::lock_guard lock(mutex_);
  Scheduler* scheduler = std::exchange(scheduler_, nullptr);
  if (scheduler == nullptr) return;
  posted_ = shared_from_this();
  scheduler->Post(*this);
}

void RemoteWake::Disarm() {
  waiter_ = nullptr;
  std::lock_guard lock(mutex_);
  scheduler_ = nullptr;
}

void RemoteWake::Run() {
  std::shared_ptr<RemoteWake> self;
  {
    // The waking thread may still be inside Wake(): it must leave before the last owner can.
    std::lock_guard lock(mutex_);
    self = std::move(posted_);
  }
  VERBENA_CHECK(self != nullptr) << "a wake-up arrives that nobody has sent";
  if (waiter_ != nullptr) std::exchange(waiter_, nullptr)->OnWake();
}

}  // namespace verbena::internal
