#include "verbena/transport/executor/executor.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/executor/completion_queues.h"
#include "verbena/transport/executor/inbox.h"
#include "verbena/transport/executor/io_ring.h"
#include "verbena/transport/executor/lag.h"
#include "verbena/transport/executor/options.h"
#include "verbena/transport/executor/timer_wheel.h"
#include "verbena/transport/executor/waiter.h"

namespace verbena::internal {

// Ends Run() from within the loop, so that Stop() is one push to the inbox.
class StopItem final : public InboxItem {
 public:
  void Run() override { reached = true; }
  // Taken by whoever sends the item, until Run() has returned.
  std::atomic<bool> sent{false};
  bool reached = false;
};

// IdleSpin: how long an adaptive executor polls in vain before it sleeps.
//
// Measured in real time, since it spends a real core. The clock is read in one of kTurnsPerRead
// idle turns, and the time counts from the first read. Owned by its executor; one thread.
class IdleSpin {
 public:
  explicit IdleSpin(Duration limit) : limit_(limit) {}

  // There was work: the next idle turn begins anew.
  void Reset() { turns_ = 0; }

  // Counts an idle turn. True when it is time to sleep.
  bool Over() {
    if (limit_ <= Duration::zero()) return true;
    if (++turns_ % kTurnsPerRead != 0) return false;
    const TimePoint now = std::chrono::steady_clock::now();
    if (turns_ == kTurnsPerRead) since_ = now;
    return now - since_ >= limit_;
  }

 private:
  static constexpr uint64_t kTurnsPerRead = 16;

  const Duration limit_;
  uint64_t turns_ = 0;
  TimePoint since_{};
};

// CpuPin: keeps the calling thread on one core while it lives.
//
// The thread gets its earlier set of cores back when the pin is destroyed, on the same thread. A
// core that cannot be had is logged, and the thread stays where it was.
class CpuPin {
 public:
  // -1 pins to nothing.
  explicit CpuPin(int cpu);
  CpuPin(const CpuPin&) = delete;
  CpuPin& operator=(const CpuPin&) = delete;
  ~CpuPin();

 private:
  bool pinned_ = false;
  cpu_set_t before_ = {};
};

namespace {

// Returns an errno.
int Pin(int cpu, cpu_set_t& before) {
  if (cpu >= CPU_SETSIZE) return EINVAL;
  const int error = pthread_getaffinity_np(pthread_self(), sizeof(before), &before);
  if (error != 0) return error;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  return pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
}

}  // namespace

CpuPin::CpuPin(int cpu) {
  if (cpu < 0) return;
  const int error = Pin(cpu, before_);
  pinned_ = error == 0;
  if (pinned_) return;
  VERBENA_LOG_LINE(
      kExecutor, kError,
      ErrnoStatus(error,
                  fmt::format("an executor cannot be pinned to core {}; it runs unpinned", cpu))
          .ToString());
}

CpuPin::~CpuPin() {
  if (pinned_) pthread_setaffinity_np(pthread_self(), sizeof(before_), &before_);
}

}  // namespace verbena::internal

namespace verbena {

// Executor::Impl: the parts that the loop drives. Internal to transport/executor.
class Executor::Impl {
 public:
  Impl(ExecutorOptions given, std::unique_ptr<internal::Waiter> its_waiter,
       std::unique_ptr<internal::Inbox> its_inbox)
      : options(std::move(given)),
        clock(options.clock != nullptr ? *options.clock : Clock::Real()),
        waiter(std::move(its_waiter)),
        inbox(std::move(its_inbox)),
        lag(clock, stats.turns),
        queues(*waiter, lag),
        timers(clock.Now()),
        spin(options.spin) {}

  // Members that each turn touches come first.
  ExecutorStats stats;
  // How much has been done since timers were compared with the clock.
  int work_since_clock = 0;
  // The host sleeps on fd().
  bool armed = false;
  // Inside Run(), or inside one Poll() or Arm(). Taken by the thread that drives the executor.
  std::atomic<bool> running{false};
  // The executor is being destroyed: nothing starts any more.
  bool closing = false;

  // Null until somebody uses it.
  internal::IoRing* ring = nullptr;

  const ExecutorOptions options;
  Clock& clock;
  const std::unique_ptr<internal::Waiter> waiter;
  const std::unique_ptr<internal::Inbox> inbox;
  internal::Lag lag;
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

// Executor::Drive: makes this thread the executor's while it lives: for Run(), one Poll() or one
// Arm(). Aborts if the executor is driven already, and says by whom.
class Executor::Drive {
 public:
  Drive(Executor& executor, const char* call) : impl_(*executor.impl_) {
    if (impl_.running.exchange(true, std::memory_order_acquire)) [[unlikely]]
      Refuse(executor, call);
  }
  Drive(const Drive&) = delete;
  Drive& operator=(const Drive&) = delete;
  ~Drive() { impl_.running.store(false, std::memory_order_release); }

 private:
  [[gnu::cold, gnu::noinline]] static void Refuse(const Executor& executor, const char* call) {
    const std::string& name = executor.options().name;
    VERBENA_CHECK(Scheduler::Current() != &executor) << call << " inside the loop of " << name;
    VERBENA_CHECK(false) << call << " of " << name << ", which another thread drives: one thread "
                         << "at a time may do so, also in BlockOn(), Server::Shutdown() and "
                         << "destructors. Stop() what the other thread runs, and join it, first";
  }

  Impl& impl_;
};

namespace {

// (start) What one turn runs at most, so that completions are polled and receives reposted while
// coroutines keep each other ready.
constexpr size_t kMaxReadyPerTurn = 256;
constexpr size_t kMaxInboxItemsPerTurn = 256;

// The clock is compared with the timers after this much work: a turn, and each thing done in it,
// count one. So an empty turn costs a sixteenth of a clock read, and a timer is late by a few turns
// at most.
constexpr int kWorkPerClockRead = 16;

// A function in the inbox; dropped when the executor is destroyed before it ran.
class FunctionItem final : public internal::InboxItem {
 public:
  FunctionItem(absl::AnyInvocable<void()> function, const bool& dropped)
      : function_(std::move(function)), dropped_(dropped) {}

  void Run() override {
    const std::unique_ptr<FunctionItem> self(this);
    if (!dropped_) function_();
  }

 private:
  absl::AnyInvocable<void()> function_;
  const bool& dropped_;
};

bool MaySleep(const std::vector<Executor*>& executors) {
  return std::ranges::all_of(executors, [](const Executor* executor) {
    const ExecutorOptions& options = executor->options();
    return options.mode != ExecutorMode::kBusy && options.clock == nullptr;
  });
}

bool PollAll(const std::vector<Executor*>& executors) {
  bool worked = false;
  for (Executor* executor : executors) {
    worked |= executor->Poll();
  }
  return worked;
}

// Sleeps until one of them has work.
void SleepOn(const std::vector<Executor*>& executors) {
  std::vector<pollfd> descriptors;
  for (Executor* executor : executors) {
    if (!executor->Arm()) return;
    descriptors.push_back({.fd = executor->fd(), .events = POLLIN, .revents = 0});
  }
  // A signal, too, ends it: the next round finds nothing to do.
  poll(descriptors.data(), descriptors.size(), -1);
}

// The kernel keeps this much of a thread's name.
constexpr size_t kMaxNameBytes = 15;

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(ExecutorOptions options) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<internal::Waiter> waiter,
                           internal::CreateWaiter(options.waiter));
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<internal::Inbox> inbox, internal::Inbox::Create());
  VERBENA_RETURN_IF_ERROR(waiter->Watch(inbox->fd(), *inbox));
  return std::unique_ptr<Executor>(new Executor(
      std::make_unique<Impl>(std::move(options), std::move(waiter), std::move(inbox))));
}

Executor::Executor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  ForgetNow();
  if (impl_->options.clock != nullptr) ticks().Use(internal::TickSource(impl_->clock));
  if (impl_->options.stamps) impl_->queues.Stamp(ticks());
}

Executor::~Executor() {
  VERBENA_CHECK(!impl_->running) << "the executor is destroyed inside its own loop, or while a "
                                    "thread runs it: "
                                 << impl_->options.name;
  CurrentScope current(*this);
  impl_->closing = true;
  impl_->inbox->EndSleep();
  AbandonTasks();
  if (impl_->file_service == nullptr) return;
  impl_->file_service->Stop();
  AbandonTasks();
  impl_->file_service.reset();
}

void Executor::AbandonTasks() {
  // Abandoning a root task may fill the inbox, and draining the inbox may add root tasks.
  do {
    while (internal::RootTask* task = impl_->roots.PopFront()) task->Abandon();
  } while (DrainInbox() > 0 || !impl_->roots.empty());
}

void Executor::Run() {
  Impl& impl = *impl_;
  const Drive drive(*this, "Run()");
  Disarm();
  internal::CpuPin pin(impl.options.cpu);
  CurrentScope current(*this);
  while (!impl.stop.reached) {
    if (Turn()) {
      impl.spin.Reset();
    } else {
      Idle();
    }
  }
  ForgetNow();
  impl.stop.reached = false;
  impl.stop.sent.store(false, std::memory_order_release);
}

void Executor::Stop() {
  if (!impl_->stop.sent.exchange(true, std::memory_order_acq_rel)) Post(impl_->stop);
}

bool Executor::Poll() {
  Impl& impl = *impl_;
  const Drive drive(*this, "Poll()");
  CurrentScope current(*this);
  if (impl.armed) {
    Disarm();
    impl.waiter->Dispatch();
  }
  // A host, or a simulator, polls when a timer is due: it is not to be late by turns.
  impl.work_since_clock = kWorkPerClockRead;
  const bool worked = Turn();
  // The host must see the current time between turns.
  ForgetNow();
  return worked;
}

bool Executor::Arm() {
  Impl& impl = *impl_;
  const Drive drive(*this, "Arm()");
  CurrentScope current(*this);
  Disarm();
  // First, since a reading of the clock may tell of a lag, and whoever hears of that queues a hook.
  const bool has_timer = NextTimer() <= now();
  const bool has_work = has_timer || has_ready() || !impl.flushes.empty();
  if (has_work || !SetHostAlarm() || !PrepareToSleep()) return false;
  impl.armed = true;
  return true;
}

void Executor::Disarm() {
  if (!std::exchange(impl_->armed, false)) return;
  impl_->inbox->EndSleep();
  impl_->lag.OnSleep();
}

bool Executor::SetHostAlarm() {
  Impl& impl = *impl_;
  if (&impl.clock != &Clock::Real()) return true;
  const TimePoint next = NextTimer();
  if (impl.host_alarm == nullptr) {
    if (next == kNever) return true;
    absl::StatusOr<std::unique_ptr<internal::HostAlarm>> alarm =
        internal::HostAlarm::Create(*impl.waiter);
    if (!alarm.ok()) {
      VERBENA_LOG_LINE(
          kExecutor, kError,
          "an executor that its host drives stays awake: " + alarm.status().ToString());
      return false;
    }
    impl.host_alarm = *std::move(alarm);
  }
  impl.host_alarm->Set(next);
  return true;
}

int Executor::fd() const { return impl_->waiter->fd(); }

TimePoint Executor::NextTimer() const { return impl_->timers.NextTimer(); }

// --- One turn ------------------------------------------------------------------------------------

bool Executor::Turn() {
  Impl& impl = *impl_;
  ++impl.stats.turns;
  ForgetNow();
  ticks().BeginTurn();

  const size_t completions = impl.queues.Poll();
  const size_t operations = impl.ring == nullptr ? 0 : impl.ring->Reap();
  const size_t timers = ++impl.work_since_clock < kWorkPerClockRead ? 0 : ExpireTimers();
  const size_t items = impl.inbox->empty() ? 0 : DrainInbox();
  const size_t resumed = has_ready() ? RunReady(kMaxReadyPerTurn) : 0;
  const size_t flushed = impl.flushes.empty() ? 0 : impl.flushes.Run();
  if (impl.ring != nullptr) impl.ring->Submit();

  if ((completions | operations | timers | items | resumed | flushed) == 0) {
    impl.lag.OnIdle();
    return false;
  }
  impl.stats.completions += completions;
  impl.stats.resumed += resumed;
  impl.work_since_clock += static_cast<int>(completions + operations + items + resumed);
  return true;
}

size_t Executor::ExpireTimers() {
  Impl& impl = *impl_;
  impl.work_since_clock = 0;
  if (impl.timers.next_check() == kNever) return 0;
  const TimePoint time = now();
  return time < impl.timers.next_check() ? 0 : impl.timers.Advance(time);
}

size_t Executor::DrainInbox() {
  Impl& impl = *impl_;
  size_t items = 0;
  while (items < kMaxInboxItemsPerTurn) {
    internal::InboxItem* item = impl.inbox->Pop();
    if (item == nullptr) break;
    ++items;
    item->Run();
  }
  impl.stats.inbox_items += items;
  return items;
}

TimePoint Executor::ReadClock() const {
  Impl& impl = *impl_;
  const TimePoint time = impl.clock.Now();
  impl.lag.OnReading(time);
  return time;
}

// --- Idle ----------------------------------------------------------------------------------------

void Executor::Idle() {
  Impl& impl = *impl_;
  if (impl.options.mode == ExecutorMode::kBusy) return;
  if (impl.options.mode == ExecutorMode::kAdaptive && !impl.spin.Over()) return;
  Sleep();
}

bool Executor::PrepareToSleep() {
  Impl& impl = *impl_;
  VERBENA_CHECK(!has_ready() && impl.flushes.empty())
      << impl.options.name << " would sleep, and has work that no event tells of";
  if (!impl.inbox->BeginSleep()) return false;
  ForgetNow();
  // Submits the operations started since the last turn.
  if (impl.ring != nullptr) impl.ring->Submit();
  if (impl.queues.Arm()) {
    // A completion that came between the last poll and the arming raises no event.
    const int completions = impl.queues.Poll();
    if (completions == 0) return true;
    impl.stats.completions += completions;
  }
  impl.inbox->EndSleep();
  return false;
}

void Executor::Sleep() {
  Impl& impl = *impl_;
  if (!PrepareToSleep()) return;
  const TimePoint next = impl.timers.NextTimer();
  const Duration timeout = next == kNever ? internal::Waiter::kForever : next - now();
  if (timeout > Duration::zero()) {
    ++impl.stats.sleeps;
    impl.waiter->Wait(timeout);
    impl.lag.OnSleep();
  }
  impl.inbox->EndSleep();
  impl.spin.Reset();
  impl.work_since_clock = kWorkPerClockRead;
}

// --- What others call ----------------------------------------------------------------------------

absl::StatusOr<ibv_cq*> Executor::AddCq(internal::Device& device, int entries,
                                        internal::CompletionListener& listener, int comp_vector) {
  VERBENA_CHECK(MayBeUsedHere()) << "a CQ is added to " << impl_->options.name
                                 << " on the thread of another scheduler";
  return impl_->queues.Add(device, entries, listener, comp_vector);
}

absl::Status Executor::RemoveCq(ibv_cq* cq) {
  VERBENA_CHECK(MayBeUsedHere()) << "a CQ is removed from " << impl_->options.name
                                 << " on the thread of another scheduler";
  return impl_->queues.Remove(cq);
}

void Executor::DrainCq(ibv_cq* cq) { impl_->stats.completions += impl_->queues.Drain(cq); }

void Executor::WatchLag(internal::LagListener& listener) {
  VERBENA_DCHECK(MayBeUsedHere()) << "a listener of " << impl_->options.name;
  impl_->lag.Add(listener);
}

void Executor::CheckLag() {
  if (impl_->lag.OnLook(now(), impl_->clock.Now())) ForgetNow();
}

bool Executor::PollOn() {
  ForgetNow();
  const internal::CompletionQueues::PolledOn polled = impl_->queues.PollOn();
  impl_->stats.completions += polled.completions;
  if (polled.emptied) impl_->lag.OnPolledOn();
  // The polls took their time: what follows reads the clock anew, and the next turn its timers.
  ForgetNow();
  impl_->work_since_clock = kWorkPerClockRead;
  return polled.emptied;
}

void Executor::FlushLater(internal::FlushHook& hook, internal::FlushPriority priority) {
  VERBENA_DCHECK(MayBeUsedHere()) << "a hook of " << impl_->options.name;
  impl_->flushes.Push(hook, priority);
}

absl::StatusOr<internal::IoRing*> Executor::UseRing() {
  absl::StatusOr<internal::IoRing*> ring = impl_->waiter->UseRing();
  if (ring.ok()) impl_->ring = *ring;
  return ring;
}

internal::ExecutorService* Executor::file_service() const { return impl_->file_service.get(); }

void Executor::SetFileService(std::unique_ptr<internal::ExecutorService> service) {
  VERBENA_CHECK(impl_->file_service == nullptr) << "an executor has one file service";
  impl_->file_service = std::move(service);
}

void Executor::StartTimer(internal::Timer& timer, TimePoint when) {
  VERBENA_DCHECK(MayBeUsedHere()) << "a timer of " << impl_->options.name;
  impl_->timers.Start(timer, when);
}

void Executor::StopTimer(internal::Timer& timer) {
  VERBENA_DCHECK(MayBeUsedHere()) << "a timer of " << impl_->options.name;
  impl_->timers.Stop(timer);
}

void Executor::Post(internal::InboxItem& item) { impl_->inbox->Push(item); }

void Executor::PostFunction(absl::AnyInvocable<void()> function) {
  Post(*new FunctionItem(std::move(function), impl_->closing));
}

const ExecutorStats& Executor::stats() const { return impl_->stats; }
const ExecutorOptions& Executor::options() const { return impl_->options; }
const char* Executor::waiter_name() const { return impl_->waiter->name(); }

void PollUntil(const std::vector<Executor*>& executors, absl::FunctionRef<bool()> done) {
  VERBENA_CHECK(!executors.empty()) << "nobody would ever be done";
  VERBENA_CHECK(Scheduler::Current() == nullptr)
      << "PollUntil() inside an executor's loop, which it would block";
  const bool may_sleep = MaySleep(executors);
  internal::IdleSpin spin(executors.front()->options().mode == ExecutorMode::kEvent
                              ? Duration::zero()
                              : executors.front()->options().spin);
  for (;;) {
    const bool worked = PollAll(executors);
    if (done()) return;
    if (worked) {
      spin.Reset();
    } else if (may_sleep && spin.Over()) {
      SleepOn(executors);
      spin.Reset();
    }
  }
}

absl::StatusOr<std::unique_ptr<ExecutorThread>> ExecutorThread::Start(ExecutorOptions options) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                           Executor::Create(std::move(options)));
  try {
    return std::unique_ptr<ExecutorThread>(new ExecutorThread(std::move(executor)));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(std::string("an executor's thread: ") + error.what());
  }
}

ExecutorThread::ExecutorThread(std::unique_ptr<Executor> executor)
    : executor_(std::move(executor)), thread_([this] {
        pthread_setname_np(pthread_self(),
                           executor_->options().name.substr(0, kMaxNameBytes).c_str());
        executor_->Run();
      }) {}

ExecutorThread::~ExecutorThread() {
  VERBENA_CHECK(Scheduler::Current() != executor_.get())
      << "the thread of " << executor_->options().name << " would wait for its own end";
  executor_->Stop();
  thread_.join();
}

}  // namespace verbena

namespace verbena::internal {

void RootTask::Run() {
  Executor::Impl& impl = *executor_->impl_;
  if (impl.closing) {
    Abandon();
    return;
  }
  VERBENA_DCHECK(Scheduler::Current() == executor_) << "a task of " << impl.options.name;
  impl.roots.PushBack(*this);
  StartTask();
}

}  // namespace verbena::internal
