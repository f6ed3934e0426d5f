#include "verbena/transport/executor/inbox.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "verbena/transport/base/check.h"
#include "verbena/transport/device/verbs_status.h"

namespace verbena::internal {
namespace {

// Stands in the list's head while the consumer sleeps. Never run.
class AsleepMark final : public InboxItem {
 public:
  void Run() override {}
};
AsleepMark asleep_mark;
InboxItem* const kAsleep = &asleep_mark;

// The items that lie under `newest`, turned around: oldest first.
InboxItem* OldestFirst(InboxItem* newest) {
  InboxItem* oldest = nullptr;
  while (newest != nullptr) {
    InboxItem* older = newest->next.load(std::memory_order_relaxed);
    newest->next.store(oldest, std::memory_order_relaxed);
    oldest = newest;
    newest = older;
  }
  return oldest;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Inbox>> Inbox::Create() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return ErrnoStatus(errno, "eventfd");
  return std::unique_ptr<Inbox>(new Inbox(fd));
}

Inbox::~Inbox() {
  EndSleep();
  VERBENA_CHECK(empty()) << "an inbox is destroyed with items in it";
  while (writes_owed_ > 0) {
    pollfd readable = {.fd = event_fd_, .events = POLLIN, .revents = 0};
    poll(&readable, 1, -1);
    OnReadable();
  }
  close(event_fd_);
}

void Inbox::Push(InboxItem& item) {
  const int event_fd = event_fd_;
  InboxItem* older = newest_.load(std::memory_order_relaxed);
  do {
    item.next.store(older == kAsleep ? nullptr : older, std::memory_order_relaxed);
  } while (!newest_.compare_exchange_weak(older, &item, std::memory_order_release,
                                          std::memory_order_relaxed));
  // The inbox may be gone from here on, unless a write is owed to it.
  if (older != kAsleep) return;
  const uint64_t one = 1;
  ssize_t written = -1;
  do {
    written = write(event_fd, &one, sizeof(one));
  } while (written < 0 && errno == EINTR);
  VERBENA_CHECK(written == sizeof(one)) << "an executor is not woken: errno " << errno;
}

InboxItem* Inbox::Pop() {
  VERBENA_CHECK(!asleep_) << "an item was taken from the inbox of an executor that sleeps";
  if (taken_ == nullptr) {
    if (newest_.load(std::memory_order_relaxed) == nullptr) return nullptr;
    taken_ = OldestFirst(newest_.exchange(nullptr, std::memory_order_acquire));
  }
  InboxItem* item = taken_;
  // Read before the item runs, since it may delete itself.
  taken_ = item->next.load(std::memory_order_relaxed);
  return item;
}

bool Inbox::BeginSleep() {
  VERBENA_CHECK(!asleep_) << "an executor that sleeps falls asleep again";
  if (taken_ != nullptr) return false;
  InboxItem* none = nullptr;
  asleep_ = newest_.compare_exchange_strong(none, kAsleep, std::memory_order_relaxed);
  return asleep_;
}

void Inbox::EndSleep() {
  if (!asleep_) return;
  asleep_ = false;
  InboxItem* mark = kAsleep;
  if (newest_.compare_exchange_strong(mark, nullptr, std::memory_order_relaxed)) return;
  // A producer took the mark away: it has written to the eventfd, or is about to.
  ++writes_owed_;
}

void Inbox::OnReadable() {
  uint64_t writes = 0;
  if (read(event_fd_, &writes, sizeof(writes)) != sizeof(writes)) return;
  writes_owed_ -= static_cast<int64_t>(writes);
  // A write that EndSleep() has not heard of is the only one that nobody owes.
  VERBENA_CHECK(writes_owed_ >= (asleep_ ? -1 : 0)) << writes << " writes, owed " << writes_owed_;
}

}  // namespace verbena::internal
