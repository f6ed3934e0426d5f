// Threads for control verbs: ControlPool, its jobs, and ControlQueue, in which sources take turns.
//
// A device's context owns the pool. Any executor's thread may hand over jobs. Each kind of work has
// a bounded number of threads; whoever waits bounds the jobs.

#ifndef VERBENA_TRANSPORT_DEVICE_CONTROL_POOL_H_
#define VERBENA_TRANSPORT_DEVICE_CONTROL_POOL_H_

#include <sched.h>

#include <array>
#include <atomic>
#include <concepts>
#include <condition_variable>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// ControlQueue: jobs of one kind that wait for a thread. Their sources take turns.
//
// A source is the address of the peer for which a job runs, or empty. Each source has a queue of
// its own, and the queues take turns: a job waits for one job of each other source, however many
// jobs these have handed over. One source runs at most `most_running` jobs at once, also while the
// others have none, so that a thread is free when another source comes.
//
// Guarded by the mutex of its ControlPool. It owns no job, and keeps a source while the source has
// jobs.
class ControlQueue {
 public:
  class Source;

  // A job. Its owner takes it off the queue before it destroys it.
  class Entry : public IntrusiveNode<Entry> {
   public:
    explicit Entry(std::string source) : source_name_(std::move(source)) {}

   private:
    friend class ControlQueue;
    const std::string source_name_;
    Source* source_ = nullptr;  // once it was queued
  };

  // The jobs of one address.
  class Source : public IntrusiveNode<Source> {
    friend class ControlQueue;
    ControlQueue* queue = nullptr;
    const std::string* name = nullptr;
    IntrusiveList<Entry> ready;
    size_t waiting = 0;  // in `ready`
    size_t running = 0;
  };

  // A job that begins. Its source must hear of its end.
  struct Begun {
    Entry* entry = nullptr;
    Source* source = nullptr;
  };

  // Before the first job.
  void set_most_running(size_t jobs) {
    VERBENA_CHECK(jobs > 0 && sources_.empty()) << jobs << ", " << sources_.size() << " sources";
    most_running_ = jobs;
  }

  // False if it may not begin yet, because its source runs enough jobs.
  bool Push(Entry& entry);
  // Returns the next job, which then counts as running until End(); no entry if none may begin.
  Begun Take();
  void End(Source& source);
  // Takes a job off whichever queue it is in.
  static void Remove(Entry& entry);
  // Jobs that may begin now.
  size_t startable() const { return startable_; }

 private:
  size_t StartableOf(const Source& source) const;
  void Forget(Source& source);

  size_t most_running_ = std::numeric_limits<size_t>::max();
  size_t startable_ = 0;
  absl::node_hash_map<std::string, Source> sources_;
  // Sources of which a job may begin; the first is served next.
  IntrusiveList<Source> turns_;
};

class ControlPool;

// The occasion of a job. Each kind has its own threads.
enum class ControlKind : uint8_t {
  kConnect,   // somebody waits for a link, and the device alone decides how long
  kResolve,   // as kConnect, but an address of the network may have to be resolved
  kToError,   // a queue pair stops at once: its peer may have broken a rule
  kTeardown,  // nobody waits
  kMemory,    // applications' registrations, which may take seconds each
  kGrowth,    // arenas of payload pools, for which calls may wait
};

// One job. The pool holds it until it has run, and the waiter until it has the result or is gone.
// The last one to let go destroys it. A job that is given up belongs to the pool alone.
class ControlJob : private InboxItem, private ControlQueue::Entry {
 public:
  // Waits for the result.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // On the waiter's thread; the result is there.
    virtual void OnJobDone() = 0;
  };

  ControlJob(ControlPool& pool, ControlKind kind, const void* order, bool must_run,
             std::string source)
      : Entry(std::move(source)), pool_(pool), kind_(kind), order_(order), must_run_(must_run) {}

  // Calls the function and keeps its result; on whatever thread.
  virtual void Execute() = 0;

  // The rest is for the waiter's thread.
  // RESOURCE_EXHAUSTED when too many wait.
  absl::Status HandOver(Scheduler& scheduler, Waiter& waiter);
  // Gives the job up to the pool: nobody waits for it any more. False when the result is under way:
  // then OnJobDone() is called.
  bool Abandon();
  // The waiter is being destroyed. The function's result goes back to the pool to be destroyed.
  void Leave();
  // The waiter has the result.
  void Taken();
  // For a job that was never handed over, or is the pool's alone.
  void Destroy() { delete this; }

 protected:
  ~ControlJob() override = default;

  ControlPool& pool() const { return pool_; }
  ControlKind kind() const { return kind_; }
  const void* order() const { return order_; }
  // Moves the function and the result to another job, which is the pool's alone.
  virtual ControlJob* MakeRemains() = 0;
  void MarkExecuted() {
    state_.store(State::kReturned, std::memory_order_relaxed);
    references_.store(1, std::memory_order_relaxed);
  }

 private:
  friend class ControlPool;

  enum class State : uint8_t {
    kPending,    // waits, or runs
    kReturning,  // is being posted to the waiter's scheduler, which must not vanish
    kReturned,   // was posted
    kAbandoned,  // nobody waits for it
  };

  // On the scheduler's thread, with the result.
  void Run() override;
  // On the pool's thread.
  void ExecuteAndReturn();
  bool Move(State to);
  void Drop();

  ControlPool& pool_;
  const ControlKind kind_;
  const void* const order_;
  const bool must_run_;
  std::atomic<State> state_{State::kPending};
  std::atomic<int> references_{2};
  // The waiter's.
  Scheduler* scheduler_ = nullptr;
  Waiter* waiter_ = nullptr;
  bool arrived_ = false;
};

template <typename Function>
class TypedControlJob final : public ControlJob {
 public:
  using Result = std::invoke_result_t<Function&>;

  TypedControlJob(ControlPool& pool, ControlKind kind, const void* order, bool must_run,
                  Function function, std::string source)
      : ControlJob(pool, kind, order, must_run, std::move(source)),
        function_(std::move(function)) {}

  void Execute() override { result_.emplace(function_()); }
  Result TakeResult() {
    VERBENA_CHECK(result_.has_value()) << "the result of a control job is taken before it is there";
    return *std::move(result_);
  }

 private:
  ~TypedControlJob() override = default;

  ControlJob* MakeRemains() override {
    auto* remains =
        new TypedControlJob(pool(), kind(), order(), /*must_run=*/true, std::move(function_),
                            /*source=*/"");
    remains->result_ = std::move(result_);
    remains->MarkExecuted();
    result_.reset();
    return remains;
  }

  Function function_;
  std::optional<Result> result_;
};

// ControlPool: a few threads that run control verbs, so that no executor does.
//
// Creating, connecting and destroying a queue pair, allocating windows and registering memory take
// from microseconds to a second (RoCE resolves an address inside ibv_modify_qp). A coroutine hands
// such work over and resumes on its own executor with the result:
//
//   absl::Status status = co_await pool.Run(ControlKind::kResolve, qp, [&device, qp] {
//     return device.ModifyQp(qp, …);
//   });
//
// Each kind of work has threads of its own, which begin with its first job and sleep while there is
// none: a thousand teardowns, or a registration that takes seconds, delay no connect, and an
// address that nobody has delays no queue pair's making. Jobs of one `order` run one after the
// other, in the order in which they were handed over, whatever their kinds; those of one kind and
// source begin in that order, too. Sources take turns, and jobs of kResolve that run for one source
// leave half of the threads to others (ControlQueue). If the system refuses to start the first
// thread of a kind, a thread of another kind runs its jobs. While the pool has no thread at all,
// Run() is refused and Finish() runs where it is awaited.
//
// A job owns its function and its result, never the coroutine: whoever waits may be cancelled or
// destroyed meanwhile. The objects that the function refers to (the device, a queue pair) must
// outlive the function. When a later job with the same `order` begins, the function has ended.
//
// Its threads run on the cores of the thread that made the pool, not on the one core of the
// executor whose job began them.
//
// Owned by the device's context, and destroyed before the device, once nobody awaits a job any
// more. Its destructor still runs the jobs that must run. Run() and Finish() on any executor's
// thread. Without threads (Options::threads) jobs run where they are awaited, at once.
class ControlPool {
 public:
  static constexpr size_t kKinds = 6;

  struct Options {
    // False: jobs run where they are awaited.
    bool threads = true;
    // Jobs of kConnect at once.
    int connect_threads = 2;
    // Jobs of kResolve at once: one may wait for an address that nobody has. One source gets at
    // most half of them. (start)
    int resolve_threads = 4;
    // Jobs of Run() that wait for a thread, of each kind; one more is refused.
    size_t max_waiting = 16384;
  };

  // The jobs of one kind.
  struct Stats {
    uint64_t run = 0;
    uint64_t dropped = 0;  // given up before they began
    size_t waiting = 0;
    int idle_threads = 0;
  };

  template <typename Function>
  class Awaiter;

  explicit ControlPool(const Options& options);
  // With the defaults of Options.
  ControlPool() : ControlPool(Options()) {}
  ControlPool(const ControlPool&) = delete;
  ControlPool& operator=(const ControlPool&) = delete;
  // Drops jobs that were given up, runs the others, and waits for them.
  ~ControlPool();

  // Runs `function`, which returns a Status or a StatusOr, and resumes with that. If its waiter
  // gives it up (cancelled, past its deadline, destroyed), the job is dropped if it has not begun;
  // otherwise its result is destroyed on a thread of the pool. `order` may be null: then the job
  // waits for no other. `source` is the address of the peer that causes the job, if one does.
  template <typename Function>
  [[nodiscard]] Awaiter<Function> Run(ControlKind kind, const void* order, Function function,
                                      std::string source = "") {
    return Awaiter<Function>(*this, kind, order, /*must_run=*/false, std::move(function),
                             std::move(source));
  }
  // Runs `function` even if nobody waits: the job is never refused, and not cancelled. For ends
  // (destroying, deregistering): there is at most one for each object.
  template <typename Function>
  [[nodiscard]] Awaiter<Function> Finish(ControlKind kind, const void* order, Function function) {
    return Awaiter<Function>(*this, kind, order, /*must_run=*/true, std::move(function),
                             /*source=*/"");
  }

  bool threads() const { return options_.threads; }
  Stats stats(ControlKind kind) const;

 private:
  friend class ControlJob;

  struct Lane {
    std::condition_variable wake;
    ControlQueue ready;
    std::vector<std::thread> threads;
    int idle = 0;        // threads asleep, or on their way to look for a job
    size_t waiting = 0;  // ready, or behind others of its order
    Stats stats;
  };

  // RESOURCE_EXHAUSTED when too many wait, unless `job` must run. Also when the pool has no thread
  // and cannot start one: then no other job is in the pool.
  absl::Status Submit(ControlJob& job);
  // Queues a job behind those of its order, to be destroyed with the result that nobody took.
  void Discard(ControlJob& job);
  void WaiterGone();
  // The job's waiter is gone. False when its result is under way: the job is still the waiter's. A
  // queued job of kResolve is destroyed at once, and the job behind it is next. The functions of
  // other kinds may own memory of the device: a thread of the pool destroys those.
  bool GiveUp(ControlJob& job);
  void Enqueue(ControlJob& job);
  void MakeReady(ControlJob& job);
  void Work(Lane& lane);
  // False when the system refuses.
  bool StartThread(Lane& lane);
  Lane* LaneWithThread();
  void Serve(ControlJob& job, std::unique_lock<std::mutex>& lock);
  // A job of this order is over: the one behind it is next.
  void JobEnded(const void* order);
  size_t MaxThreads(const Lane& lane) const;

  const Options options_;
  cpu_set_t cores_;
  mutable std::mutex mutex_;  // guards what follows
  std::array<Lane, kKinds> lanes_;
  // Jobs that wait for another of their order, which is ready or runs.
  absl::flat_hash_map<const void*, std::deque<ControlJob*>> behind_;
  std::condition_variable idle_;
  size_t unfinished_ = 0;
  size_t waiters_ = 0;
  bool closing_ = false;   // nothing more is handed over
  bool stopping_ = false;  // closing_, and no job is left
};

// Lives in the frame of the coroutine that waits, and may be destroyed with it.
template <typename Function>
class [[nodiscard]] ControlPool::Awaiter final : private ControlJob::Waiter, private CancelNode {
 public:
  using Job = TypedControlJob<Function>;

  Awaiter(ControlPool& pool, ControlKind kind, const void* order, bool must_run, Function function,
          std::string source)
      : pool_(pool),
        must_run_(must_run),
        job_(new Job(pool, kind, order, must_run, std::move(function), std::move(source))) {}
  Awaiter(const Awaiter&) = delete;
  Awaiter& operator=(const Awaiter&) = delete;
  ~Awaiter() override {
    if (job_ == nullptr) return;
    if (handed_over_) {
      job_->Leave();
    } else {
      job_->Destroy();
    }
  }

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    promise_ = &coroutine.promise();
    CancelScope* cancel = must_run_ ? nullptr : promise_->cancel;
    if (cancel != nullptr && cancel->requested()) {
      failure_ = CancelStatus(cancel->reason());
      return false;
    }
    if (!pool_.threads()) {
      job_->Execute();
      return false;
    }
    failure_ = job_->HandOver(*promise_->scheduler, *this);
    if (!failure_.ok()) {
      if (!must_run_) return false;
      // The pool has no thread, so there is nothing in it that this would have to come behind.
      failure_ = absl::OkStatus();
      job_->Execute();
      return false;
    }
    handed_over_ = true;
    if (cancel != nullptr) cancel->Add(*this);
    return true;
  }
  typename Job::Result await_resume() {
    VERBENA_RETURN_IF_ERROR(failure_);
    typename Job::Result result = job_->TakeResult();
    if (handed_over_) std::exchange(job_, nullptr)->Taken();
    return result;
  }

 private:
  void OnJobDone() override {
    CancelNode::Unlink();
    promise_->scheduler->Ready(*promise_);
  }
  void OnCancel(absl::StatusCode reason) override {
    if (!job_->Abandon()) return;
    job_ = nullptr;
    failure_ = CancelStatus(reason);
    promise_->scheduler->Ready(*promise_);
  }
  ControlPool& pool_;
  const bool must_run_;
  Job* job_;
  PromiseBase* promise_ = nullptr;
  bool handed_over_ = false;
  absl::Status failure_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_DEVICE_CONTROL_POOL_H_
