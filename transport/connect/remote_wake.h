// RemoteWake: how another thread ends an await.
//
// A coroutine that waits for another thread hands it a RemoteWake; Wake() posts it to the
// coroutine's scheduler, which then calls the waiter. It lives on the heap, shared by both sides
// and, while posted, by the scheduler's inbox, so that the coroutine may be destroyed at any
// moment: its awaiter calls Disarm(), and a wake-up that is on its way finds nobody. After Disarm()
// nothing is posted any more, so the scheduler need not outlive the other thread's operation.
//
// Arm(), Disarm() and OnWake() belong to the scheduler's thread, Wake() to any. Nothing fails. A
// scheduler that ends without running its inbox leaks what was posted to it.

#ifndef VERBENA_TRANSPORT_CONNECT_REMOTE_WAKE_H_
#define VERBENA_TRANSPORT_CONNECT_REMOTE_WAKE_H_

#include <memory>
#include <mutex>

#include "verbena/transport/coro/scheduler.h"

namespace verbena::internal {

class RemoteWake final : public InboxItem, public std::enable_shared_from_this<RemoteWake> {
 public:
  class Waiter {
   public:
    virtual void OnWake() = 0;

   protected:
    ~Waiter() = default;
  };

  // `waiter` must call Disarm() before it goes away, unless it was woken.
  static std::shared_ptr<RemoteWake> Arm(Scheduler& scheduler, Waiter& waiter);

  // Only the first call counts.
  void Wake();
  void Disarm();

 private:
  RemoteWake(Scheduler& scheduler, Waiter& waiter) : scheduler_(&scheduler), waiter_(&waiter) {}
  void Run() override;

  std::mutex mutex_;
  Scheduler* scheduler_;                // under mutex_; null once posted or disarmed
  std::shared_ptr<RemoteWake> posted_;  // under mutex_; keeps it alive in the inbox
  Waiter* waiter_;                      // the scheduler's thread only
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CONNECT_REMOTE_WAKE_H_
