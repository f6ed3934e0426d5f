// Quota: the part of something bounded, such as memory or calls, that somebody may hold.
//
// A quota may be a part of another one, its parent, as a client's is of its source's: what is taken
// of it is taken of all above it, too. Who asks first is served first, at each quota. Memory that
// is held until its buffer is free: Buffer::HoldUntilFree(). One thread. A quota outlives its
// children, its holds and their waits. The queues of those who wait lie in their frames, and have
// no other bound.
//
//   Quota of_source(1 << 20);
//   Quota of_client(1 << 19, &of_source);
//   QuotaHold hold(of_client, bytes);
//   while (hold.missing() != nullptr) VERBENA_CO_RETURN_IF_ERROR(co_await hold.TakeNext());

#ifndef VERBENA_TRANSPORT_CORO_QUOTA_H_
#define VERBENA_TRANSPORT_CORO_QUOTA_H_

#include <algorithm>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"

namespace verbena::internal {

class VERBENA_EXPORT Quota {
 public:
  // For errors: who holds it, in the plural, and what the user can do, as a sentence without its
  // full stop.
  struct Words {
    std::string whose;
    std::string remedy;
  };

  explicit Quota(size_t limit, Quota* parent = nullptr, Words words = {});
  Quota(const Quota&) = delete;
  Quota& operator=(const Quota&) = delete;
  ~Quota();

  // Takes `n` of this and of all above. False, and nothing is taken, if one of them has less, or
  // somebody waits for it.
  bool TryTake(size_t n) {
    for (Quota* quota = this; quota != nullptr; quota = quota->parent_) {
      if (!quota->room_.TryAcquire(n)) [[unlikely]] {
        GiveBelow(quota, n);
        return false;
      }
    }
    return true;
  }
  // Gives back what TryTake() took, or a part of it.
  void Give(size_t n) { GiveBelow(nullptr, n); }

  size_t limit() const { return limit_; }
  size_t room() const { return room_.available(); }
  size_t used() const { return limit_ - room(); }
  // The QuotaHolds that memory keeps until it is free (QuotaHold::Keep()).
  size_t kept() const { return kept_; }
  const std::string& whose() const { return words_.whose; }

  // Whether there is room here for `n`, or for all of it.
  bool HasRoomFor(size_t n) const { return PartOf(n) <= room(); }
  // The lowest quota, of this and those above, that lacks room for all of `n`; the topmost if none
  // does.
  const Quota& Lacking(size_t n) const;
  // RESOURCE_EXHAUSTED: `n` bytes of this quota, for which a caller asked for `asked`, did not come
  // free within `waited`. Says who holds them.
  [[gnu::cold]] absl::Status Exhausted(size_t n, size_t asked, Duration waited) const;

 private:
  friend class QuotaHold;

  // A hold that wants more than there can be takes all.
  size_t PartOf(size_t n) const { return std::min(n, limit_); }
  void GiveHere(size_t n) {
    VERBENA_CHECK(n <= used()) << words_.whose << " hold " << used() << ", and give back " << n;
    room_.Release(n);
  }
  // Gives `n` back to this, and to those above that are below `end`.
  void GiveBelow(const Quota* end, size_t n) {
    for (Quota* quota = this; quota != end; quota = quota->parent_) quota->GiveHere(n);
  }

  const size_t limit_;
  Quota* const parent_;
  Semaphore room_;
  size_t kept_ = 0;
  // The part of used() that holds have while they wait for quotas above this.
  size_t set_aside_ = 0;
  const Words words_;
};

// QuotaHold: what one holder has of a quota, and gives back when it is destroyed.
//
// A hold may want more than a quota's limit: then it takes all of that quota. Move-only; on the
// quota's thread.
class [[nodiscard]] VERBENA_EXPORT QuotaHold {
 public:
  // Waits for the next quota. co_await gives absl::Status: the reason if the coroutine's scope is
  // cancelled. Then the hold has what it had before.
  class [[nodiscard]] Awaiter final {
   public:
    explicit Awaiter(QuotaHold& hold)
        : hold_(hold), permits_(hold.next_->room_.Acquire(hold.next_->PartOf(hold.n_))) {}

    bool await_ready() const noexcept { return false; }
    template <typename Promise>
      requires std::derived_from<Promise, PromiseBase>
    bool await_suspend(std::coroutine_handle<Promise> coroutine) {
      return permits_.await_suspend(coroutine);
    }
    absl::Status await_resume() {
      VERBENA_RETURN_IF_ERROR(permits_.await_resume());
      hold_.OnTakenNext();
      return absl::OkStatus();
    }

   private:
    QuotaHold& hold_;
    Semaphore::Awaiter permits_;
  };

  // Holds nothing, and wants nothing.
  QuotaHold() = default;
  // Wants `n` of `quota` and of all above, and holds nothing yet.
  QuotaHold(Quota& quota, size_t n) : quota_(&quota), next_(&quota), n_(n) {}
  // Holds what Quota::TryTake(n) has just taken.
  static QuotaHold Taken(Quota& quota, size_t n) {
    QuotaHold hold(quota, n);
    hold.next_ = nullptr;
    return hold;
  }
  QuotaHold(QuotaHold&& other) noexcept
      : quota_(std::exchange(other.quota_, nullptr)),
        next_(std::exchange(other.next_, nullptr)),
        n_(other.n_),
        is_kept_(std::exchange(other.is_kept_, false)) {}
  QuotaHold& operator=(QuotaHold&& other) noexcept {
    if (this != &other) {
      Give();
      quota_ = std::exchange(other.quota_, nullptr);
      next_ = std::exchange(other.next_, nullptr);
      n_ = other.n_;
      is_kept_ = std::exchange(other.is_kept_, false);
    }
    return *this;
  }
  ~QuotaHold() { Give(); }

  // Whether it holds something, and all that it wants.
  explicit operator bool() const { return quota_ != nullptr && next_ == nullptr; }
  size_t wanted() const { return n_; }
  // The quota that it must take next; null if it lacks none.
  const Quota* missing() const { return next_; }

  // Takes all of what it wants, and true; or nothing. Precondition: it holds nothing.
  bool TryTake();
  // Takes a part of missing(), which is not null, now or when there is one. All who wait go from
  // the quota to those above, so that no two wait for each other. The hold stays where it is
  // meanwhile.
  Awaiter TakeNext() { return Awaiter(*this); }
  // Memory has come for what it holds, and keeps it until it is free: counts in Quota::kept(). At
  // most once. Precondition: it holds all that it wants.
  void Keep() {
    VERBENA_DCHECK(*this && !is_kept_) << "a hold of " << n_ << " is kept twice, or too early";
    is_kept_ = true;
    ++quota_->kept_;
  }
  // Gives back what it holds, and wants nothing any more.
  void Give() {
    if (quota_ != nullptr) GiveAll();
  }

 private:
  void OnTakenNext();
  void GiveAll();

  Quota* quota_ = nullptr;  // null: wants nothing
  Quota* next_ = nullptr;   // holds a part of each from quota_ to below this
  size_t n_ = 0;
  bool is_kept_ = false;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_CORO_QUOTA_H_
