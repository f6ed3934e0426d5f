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

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/executor/io_ring.h"
#include "verbena/transport/executor/options.h"

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

  // Sleeps until a watched descriptor is readable or `timeout` has passed (for ever if it is
  // kForever), and calls the listeners of the readable ones. May return early for no reason.
  static constexpr Duration kForever = Duration::max();
  virtual void Wait(Duration timeout) = 0;
  // Calls the listeners as Wait() does, without sleeping.
  virtual void Dispatch() = 0;

  // Readable while any watched descriptor is: for a host's loop that waits on it and then calls
  // Dispatch().
  virtual int fd() const = 0;

  // The io_uring that the Waiter sleeps in, for other operations: from now on their completions end
  // a sleep, and make fd() readable. FAILED_PRECONDITION for a Waiter without one.
  virtual absl::StatusOr<IoRing*> UseRing() = 0;
};

// Logs which one it created, and, if kAuto gives epoll, why not io_uring. Under ThreadSanitizer,
// which cannot see the kernel's side of a ring, kAuto means epoll.
absl::StatusOr<std::unique_ptr<Waiter>> CreateWaiter(WaiterKind kind);

// EpollWaiter: a Waiter on epoll, which every kernel allows.
//
// Timeouts are exact to nanoseconds if the kernel has epoll_pwait2 (5.11), otherwise rounded up to
// milliseconds.
class EpollWaiter final : public Waiter {
 public:
  static absl::StatusOr<std::unique_ptr<EpollWaiter>> Create();
  ~EpollWaiter() override;

  const char* name() const override { return "epoll"; }
  absl::Status Watch(int fd, ReadableListener& listener) override;
  void Unwatch(int fd) override;
  void Wait(Duration timeout) override;
  void Dispatch() override { Wait(Duration::zero()); }
  int fd() const override { return epoll_fd_; }
  absl::StatusOr<IoRing*> UseRing() override {
    return absl::FailedPreconditionError("the executor sleeps in epoll, and has no io_uring");
  }

 private:
  explicit EpollWaiter(int epoll_fd) : epoll_fd_(epoll_fd) {}

  const int epoll_fd_;
  bool has_pwait2_ = true;
};

// IoUringWaiter: a Waiter on the io_uring that also carries an executor's file operations.
//
// Each watched descriptor has a one-shot poll in the ring. The system call that sleeps also renews
// the polls that fired, and submits the collected file operations. So a sleep and its wake-up cost
// one system call together. A poll belongs to the thread that asked for it and is cancelled when
// that thread ends. The thread that sleeps next renews it.
//
// A host's loop gets an epoll descriptor for fd(), not the ring's own, because polls complete only
// when the thread that asked for them enters the kernel.
class IoUringWaiter final : public Waiter, private RingListener {
 public:
  // Fails as IoRing::Create does.
  static absl::StatusOr<std::unique_ptr<IoUringWaiter>> Create();
  ~IoUringWaiter() override = default;

  const char* name() const override { return "io_uring"; }
  absl::Status Watch(int fd, ReadableListener& listener) override;
  void Unwatch(int fd) override;
  void Wait(Duration timeout) override;
  void Dispatch() override { nested_->Dispatch(); }
  int fd() const override { return nested_->fd(); }
  absl::StatusOr<IoRing*> UseRing() override;

 private:
  // A watch, or a free entry for one. The generation tells late completions of an earlier watch
  // apart.
  struct Place {
    int fd = -1;
    uint32_t generation = 0;
    bool polled = false;
    ReadableListener* listener = nullptr;
  };
  // Does nothing: the loop reaps the completions.
  class NoListener final : public ReadableListener {
   public:
    void OnReadable() override {}
  };

  explicit IoUringWaiter(std::unique_ptr<EpollWaiter> nested);

  void RequestPolls();
  void OnTagged(uint64_t tag, int32_t result) override;

  std::vector<Place> places_;
  std::unique_ptr<EpollWaiter> nested_;
  NoListener ring_listener_;
  bool ring_watched_ = false;
  std::unique_ptr<IoRing> ring_;
};

// HostAlarm: makes an executor's descriptor readable when its next timer is due, for a host that
// sleeps on it.
//
// A timerfd that the Waiter watches. Executors that run their own loop sleep with a timeout and
// need none. Owned by its executor, destroyed before the Waiter; one thread.
class HostAlarm final : private ReadableListener {
 public:
  static absl::StatusOr<std::unique_ptr<HostAlarm>> Create(Waiter& waiter);
  HostAlarm(const HostAlarm&) = delete;
  HostAlarm& operator=(const HostAlarm&) = delete;
  ~HostAlarm() override;

  // Rings at `when`, a time of the machine's steady clock; never if `when` is kNever. Replaces the
  // time of an earlier call. A system call, unless the alarm is set to `when` already.
  void Set(TimePoint when);

 private:
  HostAlarm(Waiter& waiter, int timer_fd) : waiter_(waiter), timer_fd_(timer_fd) {}

  void OnReadable() override;

  Waiter& waiter_;
  const int timer_fd_;
  TimePoint set_to_ = kNever;  // kNever: it does not run
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_WAITER_H_
