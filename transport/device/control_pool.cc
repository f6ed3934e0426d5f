#include "verbena/transport/device/control_pool.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"

namespace verbena::internal {

bool ControlQueue::Push(Entry& entry) {
  auto [found, added] = sources_.try_emplace(entry.source_name_);
  Source& source = found->second;
  if (added) {
    source.queue = this;
    source.name = &found->first;
  }
  const size_t before = StartableOf(source);
  entry.source_ = &source;
  source.ready.PushBack(entry);
  ++source.waiting;
  if (StartableOf(source) == before) return false;
  ++startable_;
  if (!source.linked()) turns_.PushBack(source);
  return true;
}

ControlQueue::Begun ControlQueue::Take() {
  Source* source = turns_.PopFront();
  if (source == nullptr) return {};
  Entry* entry = source->ready.PopFront();
  VERBENA_CHECK(entry != nullptr && source->waiting > 0 && startable_ > 0)
      << *source->name << ": " << source->waiting << " wait, " << startable_ << " may begin";
  --source->waiting;
  ++source->running;
  --startable_;
  if (StartableOf(*source) > 0) turns_.PushBack(*source);
  return {.entry = entry, .source = source};
}

void ControlQueue::End(Source& source) {
  VERBENA_CHECK(source.queue == this && source.running > 0) << *source.name;
  const size_t before = StartableOf(source);
  --source.running;
  startable_ += StartableOf(source) - before;
  if (StartableOf(source) > 0 && !source.linked()) turns_.PushBack(source);
  Forget(source);
}

void ControlQueue::Remove(Entry& entry) {
  Source& source = *entry.source_;
  ControlQueue& queue = *source.queue;
  const size_t before = queue.StartableOf(source);
  VERBENA_CHECK(entry.linked() && source.waiting > 0) << *source.name;
  entry.Unlink();
  --source.waiting;
  const size_t after = queue.StartableOf(source);
  queue.startable_ -= before - after;
  if (after == 0) source.Unlink();
  queue.Forget(source);
}

size_t ControlQueue::StartableOf(const Source& source) const {
  VERBENA_CHECK(source.running <= most_running_)
      << *source.name << " runs " << source.running << " of " << most_running_;
  return std::min(source.waiting, most_running_ - source.running);
}

void ControlQueue::Forget(Source& source) {
  if (source.waiting > 0 || source.running > 0) return;
  sources_.erase(sources_.find(*source.name));
}

absl::Status ControlJob::HandOver(Scheduler& scheduler, Waiter& waiter) {
  VERBENA_CHECK(scheduler_ == nullptr) << "a control job is handed over twice";
  scheduler_ = &scheduler;
  waiter_ = &waiter;
  return pool_.Submit(*this);
}

bool ControlJob::Abandon() {
  // From here on the job is the pool's alone. A thread of the pool destroys it with its result,
  // even if that comes a moment later; only a job of kResolve that is queued is destroyed at once,
  // by this thread.
  return pool_.GiveUp(*this);
}

void ControlJob::Leave() {
  if (Abandon()) return;
  // The waiter's scheduler may be destroyed once this returns. By then the result must be in its
  // inbox, which its destructor empties.
  while (state_.load(std::memory_order_acquire) == State::kReturning) std::this_thread::yield();
  pool_.Discard(*MakeRemains());
  waiter_ = nullptr;
  pool_.WaiterGone();
  if (arrived_) Drop();
}

void ControlJob::Taken() {
  VERBENA_CHECK(arrived_) << "a control job's result is taken before it arrives";
  pool_.WaiterGone();
  Drop();
}

void ControlJob::Drop() {
  const int references = references_.fetch_sub(1, std::memory_order_acq_rel);
  VERBENA_CHECK(references > 0) << references;
  if (references == 1) delete this;
}

// If the waiter is gone, this job is an empty shell (MakeRemains), and the pool may be gone, too.
void ControlJob::Run() {
  VERBENA_CHECK(!arrived_) << "a control job's result arrives twice";
  arrived_ = true;
  if (waiter_ == nullptr) {
    Drop();
  } else {
    waiter_->OnJobDone();
  }
}

void ControlJob::ExecuteAndReturn() {
  Execute();
  if (!Move(State::kReturning)) return;
  scheduler_->Post(*this);
  state_.store(State::kReturned, std::memory_order_release);
}

bool ControlJob::Move(State to) {
  State pending = State::kPending;
  return state_.compare_exchange_strong(pending, to, std::memory_order_acq_rel);
}

ControlPool::ControlPool(const Options& options) : options_(options) {
  VERBENA_CHECK(options.connect_threads > 0) << "connect_threads " << options.connect_threads;
  VERBENA_CHECK(options.resolve_threads > 0) << "resolve_threads " << options.resolve_threads;
  VERBENA_CHECK(options.max_waiting > 0);
  lanes_[static_cast<size_t>(ControlKind::kResolve)].ready.set_most_running(
      static_cast<size_t>(std::max(options.resolve_threads / 2, 1)));
  if (sched_getaffinity(0, sizeof(cores_), &cores_) != 0) CPU_ZERO(&cores_);
}

ControlPool::~ControlPool() {
  std::vector<std::thread> threads;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    VERBENA_CHECK(waiters_ == 0) << waiters_ << " coroutines still await control jobs";
    closing_ = true;
    idle_.wait(lock, [this] { return unfinished_ == 0; });
    stopping_ = true;
    for (Lane& lane : lanes_) {
      lane.wake.notify_all();
      for (std::thread& thread : lane.threads) threads.push_back(std::move(thread));
    }
  }
  for (std::thread& thread : threads) thread.join();
  VERBENA_CHECK(behind_.empty()) << behind_.size() << " orders of control jobs have not ended";
  for (const Lane& lane : lanes_) {
    VERBENA_CHECK(lane.waiting == 0 && lane.ready.startable() == 0 && lane.idle == 0)
        << lane.waiting << " jobs of kind " << &lane - lanes_.data() << " wait, "
        << lane.ready.startable() << " may begin, " << lane.idle << " threads are idle";
  }
}

size_t ControlPool::MaxThreads(const Lane& lane) const {
  if (&lane == &lanes_[static_cast<size_t>(ControlKind::kConnect)]) {
    return static_cast<size_t>(options_.connect_threads);
  }
  if (&lane == &lanes_[static_cast<size_t>(ControlKind::kResolve)]) {
    return static_cast<size_t>(options_.resolve_threads);
  }
  return 1;
}

absl::Status ControlPool::Submit(ControlJob& job) {
  std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_CHECK(!closing_) << "a control job is handed over while its pool is destroyed";
  Lane& lane = lanes_[static_cast<size_t>(job.kind_)];
  if (lane.threads.empty() && !StartThread(lane) && LaneWithThread() == nullptr) {
    return absl::ResourceExhaustedError(
        "the system starts no thread for control operations; try again later");
  }
  const size_t waiting = lane.waiting;
  if (!job.must_run_ && waiting >= options_.max_waiting) {
    return absl::ResourceExhaustedError(
        fmt::format("{} control operations wait for the device already; try again later", waiting));
  }
  ++waiters_;
  Enqueue(job);
  return absl::OkStatus();
}

void ControlPool::Discard(ControlJob& job) {
  std::lock_guard<std::mutex> lock(mutex_);
  Enqueue(job);
}

void ControlPool::WaiterGone() {
  std::lock_guard<std::mutex> lock(mutex_);
  VERBENA_CHECK(waiters_ > 0);
  --waiters_;
}

bool ControlPool::GiveUp(ControlJob& job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // While the job is queued, no thread has it. Otherwise a thread may destroy it as soon as it is
    // abandoned.
    const bool dropped = job.linked() && job.kind_ == ControlKind::kResolve && !job.must_run_;
    if (!job.Move(ControlJob::State::kAbandoned)) return false;
    VERBENA_CHECK(waiters_ > 0);
    --waiters_;
    if (!dropped) return true;
    ControlQueue::Remove(job);
    Lane& lane = lanes_[static_cast<size_t>(job.kind_)];
    VERBENA_CHECK(lane.waiting > 0);
    --lane.waiting;
    ++lane.stats.dropped;
    JobEnded(job.order_);
  }
  job.Destroy();
  return true;
}

// Called under the lock, as are the functions below except Work() and stats().
void ControlPool::Enqueue(ControlJob& job) {
  ++unfinished_;
  ++lanes_[static_cast<size_t>(job.kind_)].waiting;
  if (job.order_ != nullptr) {
    auto [found, first] = behind_.try_emplace(job.order_);
    if (!first) {
      found->second.push_back(&job);
      return;
    }
  }
  MakeReady(job);
}

void ControlPool::MakeReady(ControlJob& job) {
  Lane* lane = &lanes_[static_cast<size_t>(job.kind_)];
  // Submit() has seen to it that some lane has a thread.
  if (lane->threads.empty()) lane = LaneWithThread();
  VERBENA_CHECK(lane != nullptr) << "a control job is ready, and no thread runs it";
  // If it may not begin yet, the end of another job of its source makes a thread take it.
  if (!lane->ready.Push(job)) return;
  // A thread that was woken and has not taken its job yet counts as idle, and its job as startable.
  if (lane->ready.startable() <= static_cast<size_t>(lane->idle)) {
    lane->wake.notify_one();
  } else if (lane->threads.size() < MaxThreads(*lane)) {
    // If no thread can be started, a thread that exists takes the job later.
    (void)StartThread(*lane);
  }
}

bool ControlPool::StartThread(Lane& lane) {
  try {
    lane.threads.emplace_back([this, &lane] { Work(lane); });
  } catch (const std::system_error&) {
    return false;
  }
  // A new thread counts as idle until it takes its first job.
  ++lane.idle;
  pthread_setname_np(lane.threads.back().native_handle(), "verbena-control");
  return true;
}

ControlPool::Lane* ControlPool::LaneWithThread() {
  for (Lane& lane : lanes_) {
    if (!lane.threads.empty()) return &lane;
  }
  return nullptr;
}

void ControlPool::Work(Lane& lane) {
  // If this fails, the thread stays on the cores of the thread that started it: slower for others,
  // but correct.
  if (CPU_COUNT(&cores_) > 0) (void)sched_setaffinity(0, sizeof(cores_), &cores_);
  std::unique_lock<std::mutex> lock(mutex_);
  VERBENA_CHECK(lane.idle > 0);
  --lane.idle;
  while (true) {
    if (const ControlQueue::Begun begun = lane.ready.Take(); begun.entry != nullptr) {
      Serve(static_cast<ControlJob&>(*begun.entry), lock);
      lane.ready.End(*begun.source);
      continue;
    }
    if (stopping_) return;
    ++lane.idle;
    lane.wake.wait(lock);
    --lane.idle;
  }
}

void ControlPool::Serve(ControlJob& job, std::unique_lock<std::mutex>& lock) {
  Lane& lane = lanes_[static_cast<size_t>(job.kind_)];
  const void* const order = job.order_;
  const auto state = job.state_.load(std::memory_order_acquire);
  const bool given_up = state == ControlJob::State::kAbandoned && !job.must_run_;
  const bool executed = state == ControlJob::State::kReturned;
  VERBENA_CHECK(state != ControlJob::State::kReturning && lane.waiting > 0)
      << "state " << state << ", " << lane.waiting << " wait";
  --lane.waiting;
  if (!executed) ++(given_up ? lane.stats.dropped : lane.stats.run);
  lock.unlock();
  if (!executed && !given_up) job.ExecuteAndReturn();
  // Nobody else refers to an abandoned job.
  if (job.state_.load(std::memory_order_acquire) == ControlJob::State::kAbandoned) {
    job.Destroy();
  } else {
    job.Drop();
  }
  lock.lock();
  JobEnded(order);
}

void ControlPool::JobEnded(const void* order) {
  VERBENA_CHECK(unfinished_ > 0) << "more control jobs ended than were handed over";
  if (--unfinished_ == 0) idle_.notify_all();
  if (order == nullptr) return;
  auto found = behind_.find(order);
  if (found == behind_.end()) return;
  if (found->second.empty()) {
    behind_.erase(found);
    return;
  }
  ControlJob& next = *found->second.front();
  found->second.pop_front();
  MakeReady(next);
}

ControlPool::Stats ControlPool::stats(ControlKind kind) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Lane& lane = lanes_[static_cast<size_t>(kind)];
  Stats stats = lane.stats;
  stats.waiting = lane.waiting;
  stats.idle_threads = lane.idle;
  return stats;
}

}  // namespace verbena::internal
