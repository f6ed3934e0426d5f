// Queue<T>: a bounded queue between coroutines of one thread.
//
// Push waits while it is full, Pop while it is empty; both are served first come, first served, and
// woken through the scheduler, never inline. Close() ends it: what was pushed can still be popped,
// then Pop returns OUT_OF_RANGE, as reading past an end does; Push returns FAILED_PRECONDITION.
// Both return the reason when the coroutine's scope is cancelled.
//
// No item is lost: an item belongs to the queue until the popping coroutine runs, so a popper that
// is destroyed on its way leaves it to the next. Push has happened once it returns OK; a pusher
// destroyed while it waits takes its item along. Must outlive its waiters.
//
//   Queue<Block> blocks(16);
//   absl::Status pushed = co_await blocks.Push(std::move(block));
//   absl::StatusOr<Block> block = co_await blocks.Pop();

#ifndef VERBENA_TRANSPORT_CORO_QUEUE_H_
#define VERBENA_TRANSPORT_CORO_QUEUE_H_

#include <cassert>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/intrusive_list.h"
#include "verbena/transport/coro/suspension.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

template <std::movable T>
class Queue {
 public:
  class Pusher;
  class Popper;

  // At most `capacity` items, at least one. Allocates their memory here, and none later.
  explicit Queue(size_t capacity) : ring_(capacity) { assert(capacity > 0); }

  // co_await gives absl::Status.
  Pusher Push(T item) { return Pusher(*this, std::move(item)); }
  // co_await gives absl::StatusOr<T>.
  Popper Pop() { return Popper(*this); }

  // Takes `item` and returns true, or leaves it alone when the queue is full or closed.
  bool TryPush(T&& item);
  // Nothing when the queue is empty, or when all it holds is on its way to waiters.
  std::optional<T> TryPop();

  // Refuses further items, those of waiting pushers too. May be called again.
  void Close();

  bool closed() const { return closed_; }
  size_t size() const { return size_; }
  size_t capacity() const { return ring_.size(); }

 private:
  bool full() const { return size_ == ring_.size(); }
  // Items that no woken popper is on its way to fetch.
  bool has_unclaimed() const { return size_ > claimed_; }

  void Append(T&& item);
  T TakeFirst();
  // Moves waiting pushers' items in and wakes poppers, as far as there is room and items.
  void Settle();

  std::vector<std::optional<T>> ring_;
  size_t first_ = 0;
  size_t size_ = 0;
  size_t claimed_ = 0;  // poppers woken that have not run; at most size_
  bool closed_ = false;
  internal::IntrusiveList<Pusher> pushers_;  // only while full
  internal::IntrusiveList<Popper> poppers_;  // only while every item is claimed
};

template <std::movable T>
class [[nodiscard]] Queue<T>::Pusher final : public internal::Suspension,
                                             public internal::IntrusiveNode<Pusher> {
 public:
  Pusher(Queue& queue, T item) : queue_(queue), item_(std::move(item)) {}
  ~Pusher() override = default;

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, internal::PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    if (Cancelled(coroutine)) return false;
    refused_ = queue_.closed_;
    if (refused_ || queue_.TryPush(std::move(item_))) return false;
    Suspend(coroutine);
    queue_.pushers_.PushBack(*this);
    return true;
  }
  absl::Status await_resume() const {
    return refused_ ? absl::FailedPreconditionError("queue is closed") : cancel_status();
  }

 private:
  friend class Queue;
  void Detach() override { internal::IntrusiveNode<Pusher>::Unlink(); }

  Queue& queue_;
  T item_;
  bool refused_ = false;
};

template <std::movable T>
class [[nodiscard]] Queue<T>::Popper final : public internal::Suspension,
                                             public internal::IntrusiveNode<Popper> {
 public:
  explicit Popper(Queue& queue) : queue_(queue) {}
  ~Popper() override {
    if (!claims_) return;
    --queue_.claimed_;
    queue_.Settle();
  }

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, internal::PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    if (Cancelled(coroutine)) return false;
    if (queue_.has_unclaimed()) {
      Claim();
      return false;
    }
    if (queue_.closed_) return false;
    Suspend(coroutine);
    queue_.poppers_.PushBack(*this);
    return true;
  }
  absl::StatusOr<T> await_resume() {
    if (!claims_) {
      absl::Status cancelled = cancel_status();
      return cancelled.ok() ? absl::OutOfRangeError("queue is closed") : cancelled;
    }
    claims_ = false;
    --queue_.claimed_;
    return queue_.TakeFirst();
  }

 private:
  friend class Queue;
  void Claim() {
    claims_ = true;
    ++queue_.claimed_;
  }
  void Detach() override { internal::IntrusiveNode<Popper>::Unlink(); }

  Queue& queue_;
  bool claims_ = false;  // one of the queue's items
};

template <std::movable T>
bool Queue<T>::TryPush(T&& item) {
  if (closed_ || full()) return false;
  Append(std::move(item));
  Settle();
  return true;
}

template <std::movable T>
std::optional<T> Queue<T>::TryPop() {
  if (!has_unclaimed()) return std::nullopt;
  return TakeFirst();
}

template <std::movable T>
void Queue<T>::Close() {
  closed_ = true;
  while (Pusher* pusher = pushers_.PopFront()) {
    pusher->refused_ = true;
    pusher->Resume();
  }
  while (Popper* popper = poppers_.PopFront()) popper->Resume();
}

template <std::movable T>
void Queue<T>::Append(T&& item) {
  ring_[(first_ + size_) % ring_.size()].emplace(std::move(item));
  ++size_;
}

template <std::movable T>
T Queue<T>::TakeFirst() {
  T item = std::move(*ring_[first_]);
  ring_[first_].reset();
  first_ = (first_ + 1) % ring_.size();
  --size_;
  Settle();
  return item;
}

template <std::movable T>
void Queue<T>::Settle() {
  while (!full()) {
    Pusher* pusher = pushers_.PopFront();
    if (pusher == nullptr) break;
    Append(std::move(pusher->item_));
    pusher->Resume();
  }
  while (has_unclaimed()) {
    Popper* popper = poppers_.PopFront();
    if (popper == nullptr) break;
    popper->Claim();
    popper->Resume();
  }
}

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_CORO_QUEUE_H_
