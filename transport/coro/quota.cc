#include "verbena/transport/coro/quota.h"

#include <chrono>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"

namespace verbena::internal {

Quota::Quota(size_t limit, Quota* parent, Words words)
    : limit_(limit), parent_(parent), room_(limit), words_(std::move(words)) {}

Quota::~Quota() {
  VERBENA_CHECK(used() == 0) << words_.whose << " never gave back " << used() << " of " << limit_;
}

const Quota& Quota::Lacking(size_t n) const {
  const Quota* quota = this;
  while (quota->parent_ != nullptr && n <= quota->room()) quota = quota->parent_;
  return *quota;
}

// Who waited has left the queue by now: who was ahead is not known, since those behind may have
// been served meanwhile. All are served first come, first served: if there is enough for one who
// was not served, one who wants more was ahead, unless that came free just now.
absl::Status Quota::Exhausted(size_t n, size_t asked, Duration waited) const {
  std::string others;
  if (set_aside_ > 0) {
    others +=
        fmt::format(", and {} more are kept for other calls, which wait for memory", set_aside_);
  }
  if (HasRoomFor(n)) {
    others += fmt::format(", and the {} left may be too few for a call that asked before", room());
  }
  return absl::ResourceExhaustedError(
      fmt::format("{} bytes did not come free within {} ms: {} take {} of the {} bytes that they "
                  "may have{}. {}",
                  asked, std::chrono::duration_cast<std::chrono::milliseconds>(waited).count(),
                  words_.whose, used() - set_aside_, limit_, others, words_.remedy));
}

bool QuotaHold::TryTake() {
  VERBENA_DCHECK(quota_ != nullptr && next_ == quota_) << "it holds a part of " << n_ << " already";
  for (Quota* quota = quota_; quota != nullptr; quota = quota->parent_) {
    if (quota->room_.TryAcquire(quota->PartOf(n_))) continue;
    for (Quota* taken = quota_; taken != quota; taken = taken->parent_) {
      taken->GiveHere(taken->PartOf(n_));
    }
    return false;
  }
  next_ = nullptr;
  return true;
}

void QuotaHold::OnTakenNext() {
  next_->set_aside_ += next_->PartOf(n_);
  next_ = next_->parent_;
  if (next_ != nullptr) return;
  for (Quota* quota = quota_; quota != nullptr; quota = quota->parent_) {
    quota->set_aside_ -= quota->PartOf(n_);
  }
}

void QuotaHold::GiveAll() {
  Quota* const first = std::exchange(quota_, nullptr);
  Quota* const end = std::exchange(next_, nullptr);
  if (std::exchange(is_kept_, false)) --first->kept_;
  for (Quota* quota = first; quota != end; quota = quota->parent_) {
    const size_t part = quota->PartOf(n_);
    if (end != nullptr) quota->set_aside_ -= part;
    quota->GiveHere(part);
  }
}

}  // namespace verbena::internal
