// Events and locks of the soft device's queues: EventQueue, in which completion and asynchronous
// events wait, and SpinLock.
//
// Each belongs to the object that has it, and is for any thread. The rules of these objects bound
// the events.

#ifndef VERBENA_TRANSPORT_SOFT_EVENTS_H_
#define VERBENA_TRANSPORT_SOFT_EVENTS_H_

#include <infiniband/verbs.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace verbena::internal::soft {

// EventQueue: events that wait for GetCqEvent or GetAsyncEvent, behind a descriptor to sleep on.
//
// Verbs promises that no event outlives its object: destroying one drops the events that were not
// yet taken, and waits until those that were are acknowledged. Any thread; a leaf lock. Bounded by
// the objects' own rules: one event per arming, limit, drain, connection or failure.
class EventQueue {
 public:
  struct Event {
    void* element = nullptr;
    ibv_event_type type = IBV_EVENT_CQ_ERR;
  };

  EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;
  ~EventQueue();

  // Readable while an event waits; -1 when the process is out of descriptors.
  int fd() const { return fd_; }

  void Push(const Event& event);
  // Each event taken is to be acknowledged.
  std::optional<Event> Take();
  void Acknowledge(void* element, unsigned count);
  // Called when `element` is being destroyed, and raises no more events: blocks until all its
  // events that were taken are acknowledged.
  void Forget(void* element);

 private:
  int fd_;
  std::mutex mutex_;
  std::condition_variable acknowledged_;
  std::deque<Event> waiting_;
  std::unordered_map<void*, unsigned> unacknowledged_;
};

// Tells the processor that this thread spins. Processors without such an instruction go without it.
inline void SpinPause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // `yield` does nothing on most of these processors.
  asm volatile("isb" ::: "memory");
#endif
}

// SpinLock: the lock of queues that are held for tens of nanoseconds.
//
// Works with std::lock_guard. A waiter that does not get it soon yields its core, because the
// holder may have been preempted. Leaf locks are taken after queue locks; two queue locks are taken
// in the order of their addresses (see completions.h).
class SpinLock {
 public:
  void lock() {
    while (locked_.exchange(true, std::memory_order_acquire)) Wait();
  }
  bool try_lock() {
    return !locked_.load(std::memory_order_relaxed) &&
           !locked_.exchange(true, std::memory_order_acquire);
  }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  void Wait() {
    for (int spins = 0; locked_.load(std::memory_order_relaxed); ++spins) {
      if (spins < 256) {
        SpinPause();
      } else {
        sched_yield();
      }
    }
  }

  std::atomic<bool> locked_{false};
};

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_EVENTS_H_
