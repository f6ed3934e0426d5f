#include "verbena/transport/soft/events.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

namespace verbena::internal::soft {

EventQueue::EventQueue() : fd_(eventfd(0, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC)) {}

EventQueue::~EventQueue() {
  if (fd_ >= 0) close(fd_);
}

void EventQueue::Push(const Event& event) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back(event);
  eventfd_write(fd_, 1);
}

std::optional<EventQueue::Event> EventQueue::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (waiting_.empty()) return std::nullopt;
  eventfd_t value = 0;
  eventfd_read(fd_, &value);
  const Event event = waiting_.front();
  waiting_.pop_front();
  ++unacknowledged_[event.element];
  return event;
}

void EventQueue::Acknowledge(void* element, unsigned count) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = unacknowledged_.find(element);
  if (found == unacknowledged_.end()) return;
  found->second -= std::min(found->second, count);
  if (found->second == 0) unacknowledged_.erase(found);
  acknowledged_.notify_all();
}

void EventQueue::Forget(void* element) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::erase_if(waiting_, [&](const Event& event) {
    if (event.element != element) return false;
    eventfd_t value = 0;
    eventfd_read(fd_, &value);
    return true;
  });
  acknowledged_.wait(lock, [&] { return !unacknowledged_.contains(element); });
}

}  // namespace verbena::internal::soft
