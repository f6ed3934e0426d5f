// Waiter: how an idle executor sleeps until a descriptor is readable or a time has come.
//
// Two implementations, chosen once when the executor is created: io_uring if the kernel allows it,
// otherwise epoll. Level-triggered: a descriptor that stays readable is reported by every wait, so
// that a listener need not read it empty. Owned by its executor and used on its thread; holds a few
// descriptors (one per CQ, and the inbox).
//
//   VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Waiter> waiter, CreateWaiter(WaiterKind::kAuto));
//   waiter->Watch(fd, listener);
//   waiter->Wait(std::chrono::milliseconds(5));   // calls listener.OnReadable()

#ifndef VERBENA_TRANSPORT_EXECUTOR_WAITER_H_
#define VERBENA_TRANSPORT_EXECUTOR_WAITER_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/executor/executor_options.h"

namespace verbena::internal {

class IoRing;

// Hears that a watched descriptor is readable. Must outlive its watch.
class ReadableListener {
 public:
  virtual ~ReadableListener() = default;
  // On the executor's thread, inside a wait or while a turn reaps the ring. Must not watch or
  // unwatch.
  virtual void OnReadable() = 0;
};

class Waiter {
 public:
  virtual ~Waiter() = default;

  // "io_uring" or "epoll".
  virtual const char* name() const = 0;

  // Watches `fd`, which must stay open until Unwatch(). An fd is watched once.
  virtual absl::Status Watch(int fd, ReadableListener& listener) = 0;
  virtual void Unwatch(int fd) = 0;

  // Sleeps until a watched descriptor is readable or `timeout` has passed (forever when it is
  // kForever), and calls the listeners of those that are. May return early for no reason.
  static constexpr Duration kForever = Duration::max();
  virtual void Wait(Duration timeout) = 0;
  // Calls the listeners as Wait() does, without sleeping.
  virtual void Dispatch() = 0;

  // Readable while any watched descriptor is: for a loop that waits in this one's stead and then
  // calls Dispatch().
  virtual int fd() const = 0;

  // The io_uring that it sleeps in, for operations of others: from now on their completions end a
  // sleep, and make fd() readable. FAILED_PRECONDITION for a Waiter without one.
  virtual absl::StatusOr<IoRing*> UseRing() = 0;
};

// Logs which one it created, and, if kAuto gives epoll, why not io_uring. Under ThreadSanitizer,
// which cannot see the kernel's side of a ring, kAuto means epoll.
absl::StatusOr<std::unique_ptr<Waiter>> CreateWaiter(WaiterKind kind);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_WAITER_H_
