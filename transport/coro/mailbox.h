// The ways back from other threads to a coroutine: RemoteWake and Mailbox.
//
// The threads of bootstraps, of etcd's clients and of lookups end awaits by them. Users of a
// Mailbox bound it; nothing else here queues more than one item for each await.

#ifndef VERBENA_TRANSPORT_CORO_MAILBOX_H_
#define VERBENA_TRANSPORT_CORO_MAILBOX_H_

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

// RemoteWake: how another thread ends an await.
//
// A coroutine that waits for another thread hands it a RemoteWake; Wake() posts it to the
// coroutine's scheduler, which then calls the waiter. It lives on the heap, shared by both sides
// and, while posted, by the scheduler's inbox, so that the coroutine may be destroyed at any
// moment: its awaiter calls Disarm(), and a wake-up that is on its way finds nobody. After Disarm()
// nothing is posted any more, so the scheduler need not outlive the other thread's operation.
//
// Arm(), Disarm() and OnWake() belong to the scheduler's thread, Wake() to any. Nothing fails. A
// scheduler that ends without running its inbox leaks what was posted to it.
class VERBENA_EXPORT RemoteWake final : public InboxItem,
                                        public std::enable_shared_from_this<RemoteWake> {
 public:
  class Waiter {
   public:
    virtual void OnWake() = 0;

   protected:
    ~Waiter() = default;
  };

  // `waiter` must call Disarm() before it goes away, unless it was woken.
  static std::shared_ptr<RemoteWake> Arm(Scheduler& scheduler, Waiter& waiter);

  // Only the first call counts.
  void Wake();
  void Disarm();

 private:
  RemoteWake(Scheduler& scheduler, Waiter& waiter) : scheduler_(&scheduler), waiter_(&waiter) {}
  void Run() override;

  std::mutex mutex_;
  Scheduler* scheduler_;                // under mutex_; null once posted or disarmed
  std::shared_ptr<RemoteWake> posted_;  // under mutex_; keeps it alive in the inbox
  Waiter* waiter_;                      // the scheduler's thread only
};

// Mailbox<T>: values that any thread puts in and one coroutine takes out.
//
// A bootstrap uses one to bring an answer back to the executor that waits for it. Producers and the
// consumer share it (make it with std::make_shared). Values stay in the mailbox if the consumer's
// await is cancelled or destroyed, and the next Pop() finds them. The mailbox has no bound of its
// own; each user says what bounds it.
//
//   auto mailbox = std::make_shared<Mailbox<std::string>>();
//   mailbox->Push("hello");                                          // any thread
//   absl::StatusOr<std::string> greeting = co_await mailbox->Pop();  // one coroutine at a time
//   mailbox->Finish(absl::UnavailableError("the peer has gone"));    // what Pop() then returns
template <typename T>
class Mailbox : public std::enable_shared_from_this<Mailbox<T>> {
 public:
  class PopAwaiter;

  // False, and `item` is dropped, when the mailbox has ended or holds `limit` items already.
  bool Push(T item, size_t limit = std::numeric_limits<size_t>::max());
  // Ends the mailbox: Pop() returns what is in it, then `why` (an error) for ever. Only the first
  // end counts, except that Abort() overrides Finish().
  void Finish(const absl::Status& why);
  // Ends the mailbox as Finish() does, and drops the items in it.
  void Abort(const absl::Status& why);

  bool empty() const { return size() == 0; }
  size_t size() const;

  // co_await gives absl::StatusOr<T>. FAILED_PRECONDITION when another Pop() waits already.
  PopAwaiter Pop() { return PopAwaiter(this->shared_from_this()); }

 private:
  enum class Entry { kWaits, kReady, kBusy };

  // Enters `wake` as the one who waits, unless there is nothing to wait for.
  Entry Enter(std::shared_ptr<RemoteWake> wake);
  void Leave(const std::shared_ptr<RemoteWake>& wake);
  // Takes the first item, or the end, and leaves if `wake` had entered.
  absl::StatusOr<T> Take(const std::shared_ptr<RemoteWake>& wake);

  // Both under mutex_.
  bool ended() const { return end_code_ != absl::StatusCode::kOk; }
  void SetEnd(const absl::Status& why) {
    end_code_ = why.code();
    end_message_ = std::string(why.message());
  }

  mutable std::mutex mutex_;
  std::deque<T> items_;
  // Why it ended, OK while open; not an absl::Status, whose shared part would be released on one
  // thread and read on another where ThreadSanitizer cannot follow: in Debian's uninstrumented
  // library.
  absl::StatusCode end_code_ = absl::StatusCode::kOk;
  std::string end_message_;
  // The one consumer, until it has taken the item that it was woken for: a second one must not take
  // that item first.
  std::shared_ptr<RemoteWake> waiting_;
};

// Lives in the frame of the awaiting coroutine, which may be destroyed at any time.
template <typename T>
class Mailbox<T>::PopAwaiter final : private Suspension, private RemoteWake::Waiter {
 public:
  explicit PopAwaiter(std::shared_ptr<Mailbox> mailbox) : mailbox_(std::move(mailbox)) {}
  ~PopAwaiter() override { Detach(); }

  bool await_ready() const noexcept { return false; }

  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    if (Cancelled(coroutine)) return false;
    std::shared_ptr<RemoteWake> wake = RemoteWake::Arm(scheduler(), *this);
    entry_ = mailbox_->Enter(wake);
    if (entry_ != Entry::kWaits) return false;
    wake_ = std::move(wake);
    return Suspend(coroutine);
  }

  absl::StatusOr<T> await_resume() {
    if (cancel_reason() != absl::StatusCode::kOk) return cancel_status();
    if (entry_ == Entry::kBusy) {
      return absl::FailedPreconditionError("another await of the same kind is in flight");
    }
    return mailbox_->Take(std::exchange(wake_, nullptr));
  }

 private:
  void OnWake() override { Resume(); }
  void Detach() override {
    if (wake_ == nullptr) return;
    wake_->Disarm();
    mailbox_->Leave(std::exchange(wake_, nullptr));
  }

  const std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<RemoteWake> wake_;  // from entering the mailbox to taking or leaving
  Entry entry_ = Entry::kReady;
};

template <typename T>
bool Mailbox<T>::Push(T item, size_t limit) {
  std::shared_ptr<RemoteWake> wake;
  {
    std::lock_guard lock(mutex_);
    if (ended() || items_.size() >= limit) return false;
    items_.push_back(std::move(item));
    wake = waiting_;
  }
  if (wake != nullptr) wake->Wake();
  return true;
}

template <typename T>
void Mailbox<T>::Finish(const absl::Status& why) {
  VERBENA_CHECK(!why.ok()) << "a mailbox ends with an error";
  std::shared_ptr<RemoteWake> wake;
  {
    std::lock_guard lock(mutex_);
    if (ended()) return;
    SetEnd(why);
    wake = waiting_;
  }
  if (wake != nullptr) wake->Wake();
}

template <typename T>
void Mailbox<T>::Abort(const absl::Status& why) {
  VERBENA_CHECK(!why.ok()) << "a mailbox ends with an error";
  std::deque<T> dropped;  // destroyed outside the lock: a dropped stream closes itself
  std::shared_ptr<RemoteWake> wake;
  {
    std::lock_guard lock(mutex_);
    SetEnd(why);
    dropped.swap(items_);
    wake = waiting_;
  }
  if (wake != nullptr) wake->Wake();
}

template <typename T>
size_t Mailbox<T>::size() const {
  std::lock_guard lock(mutex_);
  return items_.size();
}

template <typename T>
auto Mailbox<T>::Enter(std::shared_ptr<RemoteWake> wake) -> Entry {
  std::lock_guard lock(mutex_);
  if (waiting_ != nullptr) return Entry::kBusy;
  if (!items_.empty() || ended()) return Entry::kReady;
  waiting_ = std::move(wake);
  return Entry::kWaits;
}

template <typename T>
void Mailbox<T>::Leave(const std::shared_ptr<RemoteWake>& wake) {
  std::lock_guard lock(mutex_);
  if (waiting_ == wake) waiting_ = nullptr;
}

template <typename T>
absl::StatusOr<T> Mailbox<T>::Take(const std::shared_ptr<RemoteWake>& wake) {
  std::lock_guard lock(mutex_);
  if (waiting_ == wake) waiting_ = nullptr;
  VERBENA_CHECK(!items_.empty() || ended()) << "somebody was woken for nothing";
  if (items_.empty()) return absl::Status(end_code_, end_message_);
  T item = std::move(items_.front());
  items_.pop_front();
  return item;
}

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CORO_MAILBOX_H_
