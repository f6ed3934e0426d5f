#include "tests/rpc/link_breaker.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "tests/rpc/watched_device.h"
#include "verbena/rpc/shard/runtime.h"

namespace verbena::internal {

TestDevice LinkBreaker::device() {
  return {.open = OpenerOfWatched(
              [this](CallEvent event, WatchedDevice& at, uint32_t qpn) { Visit(event, at, qpn); })};
}

void LinkBreaker::OfHandler(CallEvent event) {
  std::unique_lock<std::mutex> lock(mutex_);
  WatchedDevice* const device = server_;
  const uint32_t qpn = server_qpn_;
  lock.unlock();
  if (device != nullptr) Visit(event, *device, qpn);
}

int LinkBreaker::broken() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return broken_;
}

int LinkBreaker::broken_at(CallEvent event) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return broken_at_[static_cast<size_t>(event)];
}

void LinkBreaker::Set(std::optional<CallEvent> event, int visits) {
  std::lock_guard<std::mutex> lock(mutex_);
  event_ = event;
  visits_left_ = visits;
}

void LinkBreaker::Visit(CallEvent event, WatchedDevice& device, uint32_t qpn) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (event == CallEvent::kRequestArrived) {
      server_ = &device;
      server_qpn_ = qpn;
    }
    if (event_.value_or(event) != event || visits_left_ == 0 || --visits_left_ > 0) return;
    // Before the link breaks: a call that has lost it finds it counted.
    Count(event, 1);
  }
  if (device.Break(qpn)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  Count(event, -1);
}

void LinkBreaker::Count(CallEvent event, int links) {
  broken_ += links;
  broken_at_[static_cast<size_t>(event)] += links;
}

}  // namespace verbena::internal
