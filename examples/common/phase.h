// Phase: many calls of one kind, made by coroutines on every executor of a runtime.
//
// `in_flight` workers, spread over the executors, take work until nothing is left. A call that
// fails stops the phase, and so does Cancel(). A Phase is started once, by the thread that then
// waits for `ended`, and destroyed after it has ended. While it runs, only calls(), bytes() and
// running_for() may be read.
//
//   PutWork work(channel, corpus);
//   Phase phase(runtime, work, 64, *ended);
//   phase.Start();
//   …  // until ended->fd() is readable
//   PhaseReport report = phase.Report();

#ifndef VERBENA_EXAMPLES_COMMON_PHASE_H_
#define VERBENA_EXAMPLES_COMMON_PHASE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "examples/common/latencies.h"
#include "examples/common/signals.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/task.h"

namespace examples {

// One executor's part of a phase: the counts of its workers. Only they use it, except for the
// atomics.
class Lane {
 public:
  explicit Lane(std::atomic<bool>& stop) : stop_(stop) {}

  // False once workers must take no more work.
  bool may_go_on() const { return !stop_.load(std::memory_order_relaxed) && !cancel_.requested(); }
  // Counts one call that began at `began` and has ended now.
  void CountCall(verbena::TimePoint began, uint64_t bytes);
  // Counts an error, and stops the phase. CANCELLED after Phase::Cancel() is not an error.
  void Fail(absl::Status error);

 private:
  friend class Phase;

  std::atomic<bool>& stop_;
  verbena::CancelScope cancel_;
  Latencies latencies_;
  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> bytes_{0};
  uint64_t errors_ = 0;
  absl::Status first_error_;
};

// The work of a phase. Must outlive it.
class Work {
 public:
  virtual ~Work() = default;
  // "put": names the row of the table.
  virtual const char* name() const = 0;
  // The number of calls to make, for the progress line; 0 if not known in advance.
  virtual uint64_t total_calls() const = 0;
  // The phase has no more workers than this.
  virtual int max_workers() const = 0;
  // One worker: takes work until there is none, or until the lane may not go on. Runs on every
  // executor at once.
  virtual verbena::Task<void> RunWorker(Lane& lane) = 0;
};

struct PhaseReport {
  std::string name;
  uint64_t calls = 0;
  uint64_t bytes = 0;  // of values
  uint64_t credit_waits = 0;
  uint64_t errors = 0;
  std::chrono::duration<double> elapsed{};
  Latencies latencies;
  absl::Status first_error;

  // Adds another run of the same phase.
  void Add(const PhaseReport& other);
};

class Phase {
 public:
  // `ended` is woken once, when the last worker has ended.
  Phase(verbena::Runtime& runtime, Work& work, int in_flight, Wakeup& ended);
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

  void Start();
  // Cancels the calls in flight, and blocks until each executor has cancelled its own. The phase
  // still ends by waking `ended`.
  void Cancel();

  uint64_t calls() const;
  uint64_t bytes() const;
  std::chrono::duration<double> running_for() const;

  // Precondition: the phase has ended.
  PhaseReport Report() const;

 private:
  verbena::Task<void> RunLane(Lane& lane, int workers);
  verbena::Task<void> RunWorkers(Lane& lane, int workers);
  uint64_t CreditWaits() const;

  verbena::Runtime& runtime_;
  Work& work_;
  const int workers_;
  Wakeup& ended_;
  std::atomic<bool> stop_{false};
  std::atomic<int> lanes_running_{0};
  std::vector<std::unique_ptr<Lane>> lanes_;  // by executor
  uint64_t credit_waits_before_ = 0;
  verbena::TimePoint began_{};
  verbena::TimePoint ended_at_{};  // written by the last lane, before `ended` is woken
};

}  // namespace examples

#endif  // VERBENA_EXAMPLES_COMMON_PHASE_H_
