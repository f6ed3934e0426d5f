#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "verbena/transport/preload/rdma_cm_id.h"

namespace verbena::internal::preload {

CmIdEvent::CmIdEvent(CmId& subject, rdma_cm_event_type type, int error)
    : rdma_cm_event{}, held(&subject) {
  id = &subject;
  event = type;
  status = error;
  param.conn.private_data = nullptr;
}

std::unique_ptr<CmIdChannel> CmIdChannel::Create() {
  // A semaphore: each read takes one event's count.
  const int counter = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (counter < 0) return nullptr;
  std::unique_ptr<CmIdChannel> channel(new CmIdChannel);
  channel->fd = counter;
  return channel;
}

CmIdChannel::~CmIdChannel() { close(fd); }

void CmIdChannel::Post(std::unique_ptr<CmIdEvent> event) {
  events_.push_back(std::move(event));
  const uint64_t one = 1;
  // Its limit is 2^64 - 2 events.
  [[maybe_unused]] const ssize_t written = write(fd, &one, sizeof(one));
}

std::unique_ptr<CmIdEvent> CmIdChannel::Pop() {
  if (events_.empty()) return nullptr;
  std::unique_ptr<CmIdEvent> event = std::move(events_.front());
  events_.pop_front();
  return event;
}

std::deque<std::unique_ptr<CmIdEvent>> CmIdChannel::Remove(const CmId& id) {
  std::deque<std::unique_ptr<CmIdEvent>> removed;
  std::deque<std::unique_ptr<CmIdEvent>> kept;
  for (std::unique_ptr<CmIdEvent>& event : events_) {
    (event->held == &id ? removed : kept).push_back(std::move(event));
  }
  events_ = std::move(kept);
  // A thread in Wait may have taken a count already: then there is none, and that thread looks
  // again.
  for (size_t i = 0; i < removed.size() && TakeCount(); ++i) {
  }
  return removed;
}

// The lock is held, and a thread in Wait may be faster at any time: so poll() proves nothing, and a
// read that waits would keep the lock for ever.
bool CmIdChannel::TakeCount() const {
  uint64_t count;
  const iovec room{.iov_base = &count, .iov_len = sizeof(count)};
  const ssize_t got = preadv2(fd, &room, 1, /*offset=*/-1, RWF_NOWAIT);
  if (got >= 0 || errno != EOPNOTSUPP) return got == sizeof(count);
  // Linux before 5.8 has no such read of an eventfd.
  pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&ready, 1, 0) == 1 && Wait() == 0;
}

int CmIdChannel::Wait() const {
  uint64_t count;
  return read(fd, &count, sizeof(count)) == sizeof(count) ? 0 : errno;
}

}  // namespace verbena::internal::preload
