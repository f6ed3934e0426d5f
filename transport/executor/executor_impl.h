// Executor::Impl: the parts that the loop drives. Internal to transport/executor.

#ifndef VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_IMPL_H_
#define VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_IMPL_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "transport/executor/idle_spin.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/intrusive_list.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/executor/completion_queues.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/executor_service.h"
#include "verbena/transport/executor/flush_queue.h"
#include "verbena/transport/executor/host_alarm.h"
#include "verbena/transport/executor/inbox.h"
#include "verbena/transport/executor/io_ring.h"
#include "verbena/transport/executor/root_task.h"
#include "verbena/transport/executor/timer_wheel.h"
#include "verbena/transport/executor/waiter.h"

namespace verbena {

namespace internal {

// Ends Run() from within the loop, so that Stop() is one push to the inbox.
class StopItem final : public InboxItem {
 public:
  void Run() override { reached = true; }
  // Taken by whoever sends the item, until Run() has returned.
  std::atomic<bool> sent{false};
  bool reached = false;
};

}  // namespace internal

class Executor::Impl {
 public:
  Impl(ExecutorOptions given, std::unique_ptr<internal::Waiter> its_waiter,
       std::unique_ptr<internal::Inbox> its_inbox)
      : options(std::move(given)),
        clock(options.clock != nullptr ? *options.clock : Clock::Real()),
        waiter(std::move(its_waiter)),
        inbox(std::move(its_inbox)),
        queues(*waiter),
        timers(clock.Now()),
        spin(options.spin) {}

  // Members that each turn touches come first.
  ExecutorStats stats;
  // How much has been done since timers were compared with the clock.
  int work_since_clock = 0;
  // The host sleeps on fd().
  bool armed = false;
  // Inside Run(), or inside one Poll().
  bool running = false;
  // The executor is being destroyed: nothing starts any more.
  bool closing = false;

  // Null until somebody uses it.
  internal::IoRing* ring = nullptr;

  const ExecutorOptions options;
  Clock& clock;
  const std::unique_ptr<internal::Waiter> waiter;
  const std::unique_ptr<internal::Inbox> inbox;
  internal::CompletionQueues queues;
  internal::FlushQueue flushes;
  internal::TimerWheel timers;
  // Null until a host sleeps while a timer runs.
  std::unique_ptr<internal::HostAlarm> host_alarm;
  internal::IdleSpin spin;
  internal::StopItem stop;
  internal::IntrusiveList<internal::RootTask> roots;
  std::unique_ptr<internal::ExecutorService> file_service;
};

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_IMPL_H_
