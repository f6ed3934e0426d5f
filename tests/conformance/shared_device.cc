#include "tests/conformance/shared_device.h"

#include <poll.h>

#include <algorithm>
#include <string>

#include "fmt/format.h"
#include "tests/conformance/patience.h"

namespace verbena::internal::conformance {
namespace {

const void* ObjectOf(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return event.element.cq;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return event.element.srq;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return event.element.qp;
    default:
      return nullptr;
  }
}

}  // namespace

void SharedDevice::Drain() {
  for (;;) {
    absl::StatusOr<ibv_async_event> event = device_->GetAsyncEvent();
    if (!event.ok()) return;
    events_.push_back({event->event_type, ObjectOf(*event)});
    device_->AckAsyncEvent(*event);
  }
}

bool SharedDevice::Take(ibv_event_type type, const void* object) {
  const auto found = std::find_if(events_.begin(), events_.end(), [&](const Event& event) {
    return event.type == type && event.object == object;
  });
  if (found == events_.end()) return false;
  events_.erase(found);
  return true;
}

absl::Status SharedDevice::AwaitEvent(ibv_event_type type, const void* object,
                                      uint32_t timeout_ms) {
  const TimeLimit deadline(timeout_ms);
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      Drain();
      if (Take(type, object)) return absl::OkStatus();
      if (deadline.passed()) {
        std::string instead;
        for (const Event& event : events_) {
          if (event.object == object) instead += fmt::format(" {}", ibv_event_type_str(event.type));
        }
        return absl::DeadlineExceededError(fmt::format("no event \"{}\" within {} ms; came:{}",
                                                       ibv_event_type_str(type), timeout_ms,
                                                       instead.empty() ? " none" : instead));
      }
    }
    // Another host of this device may drain the event that we wait for, hence the short waits.
    pollfd waiting{.fd = device_->async_fd(), .events = POLLIN, .revents = 0};
    poll(&waiting, 1, std::min(deadline.left_ms(), 10));
  }
}

void SharedDevice::Forget(const void* object) {
  std::lock_guard lock(mutex_);
  Drain();
  std::erase_if(events_, [&](const Event& event) { return event.object == object; });
}

}  // namespace verbena::internal::conformance
