// Inbox: work that other threads send to an executor.
//
// Lock-free, many producers and one consumer, first in first out per producer. Producers own the
// items, and so bound the list. One word carries both the list and whether the consumer sleeps:
// null (awake, nothing there), kAsleep, or the newest item. The producer that replaces kAsleep, and
// it alone, writes the eventfd. So while the consumer is awake a push is one compare-and-swap, and
// no wake-up can fall between a check and a sleep.
//
// A producer touches nothing of the inbox after its item can be seen, except the eventfd when it
// replaced kAsleep; the destructor waits for that write. So whoever learns from an item that its
// work is done may destroy the executor at once.

#ifndef VERBENA_TRANSPORT_EXECUTOR_INBOX_H_
#define VERBENA_TRANSPORT_EXECUTOR_INBOX_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/executor/waiter.h"

namespace verbena::internal {

class Inbox final : public ReadableListener {
 public:
  static absl::StatusOr<std::unique_ptr<Inbox>> Create();
  // Precondition: the inbox is empty, and every push that has begun has made its item visible.
  ~Inbox() override;

  // From any thread, a signal handler too.
  void Push(InboxItem& item);

  // The rest is for the consumer.
  bool empty() const {
    VERBENA_DCHECK(!asleep_) << "the inbox of an executor that sleeps looks full";
    return taken_ == nullptr && newest_.load(std::memory_order_relaxed) == nullptr;
  }
  // The oldest item, or nullptr. The consumer must be awake.
  InboxItem* Pop();

  // Declares the consumer asleep. False when there is an item: it must not sleep.
  bool BeginSleep();
  // Declares the consumer awake. Between the two calls, the consumer watches fd().
  void EndSleep();
  int fd() const { return event_fd_; }
  void OnReadable() override;

 private:
  explicit Inbox(int event_fd) : event_fd_(event_fd) {}

  // The consumer's: items taken from newest_, oldest first.
  InboxItem* taken_ = nullptr;
  bool asleep_ = false;
  // Writes to the eventfd that producers have promised, less those that were read. Negative for a
  // moment if a write is read before EndSleep() learns of it.
  int64_t writes_owed_ = 0;
  const int event_fd_;
  alignas(64) std::atomic<InboxItem*> newest_{nullptr};
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_INBOX_H_
