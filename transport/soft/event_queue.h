// EventQueue: events that wait for GetCqEvent or GetAsyncEvent, behind a descriptor to sleep on.
//
// Verbs promises that no event outlives its object: destroying one drops the events that were not
// yet taken, and waits until those that were are acknowledged. Any thread; a leaf lock. Bounded by
// the objects' own rules: one event per arming, limit or failure.

#ifndef VERBENA_TRANSPORT_SOFT_EVENT_QUEUE_H_
#define VERBENA_TRANSPORT_SOFT_EVENT_QUEUE_H_

#include <infiniband/verbs.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace verbena::internal::soft {

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

}  // namespace verbena::internal::soft

#endif  // VERBENA_TRANSPORT_SOFT_EVENT_QUEUE_H_
