#include "verbena/transport/link/credits.h"

#include <algorithm>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"

namespace verbena::internal {

uint32_t CreditPool::Borrow(uint32_t wanted, CreditShare& share, bool is_shared) {
  uint32_t borrowed = std::min(wanted, free_);
  if (is_shared) {
    const uint32_t spare = free_ > share.borrowed ? free_ - share.borrowed : 0;
    borrowed = std::min(borrowed, (spare + 1) / 2);
  }
  free_ -= borrowed;
  share.borrowed += borrowed;
  return borrowed;
}

void CreditPool::GiveBack(uint32_t count, CreditShare& share) {
  VERBENA_CHECK(count <= capacity_ - free_ && count <= share.borrowed)
      << "credits " << count << " beyond a pool of " << capacity_ << ", free " << free_
      << ", borrowed by the share " << share.borrowed;
  free_ += count;
  share.borrowed -= count;
}

absl::Status SendCredits::Implausible(uint32_t issued, uint16_t reserve_seen) const {
  if (static_cast<uint16_t>(reserve_spent_ - reserve_seen) > kReserveCredits) {
    return absl::InvalidArgumentError(fmt::format(
        "the peer claims to have seen {} reserve SENDs of {}", reserve_seen, reserve_spent_));
  }
  return absl::InvalidArgumentError(fmt::format(
      "the peer claims to have issued {} credits in all, after {} of which {} are spent", issued,
      issued_, spent_));
}

uint32_t SendCredits::GiveBackWithin(uint32_t limit) {
  const uint32_t wanted = limit - returned_;
  // A greater difference has wrapped around: a recall that has been answered already.
  if (wanted > kMaxWindow) return 0;
  const uint32_t count = std::min(wanted, available());
  returned_ += count;
  return count;
}

IssuedCredits::IssuedCredits(CreditPool& pool, CreditShare& share, uint32_t initial_window,
                             uint32_t max_window)
    : pool_(pool),
      share_(share),
      initial_window_(initial_window),
      max_window_(max_window),
      window_(initial_window),
      issued_(initial_window),
      advertised_(initial_window) {}

absl::Status IssuedCredits::SentWithoutCredit() const {
  return absl::ResourceExhaustedError(
      fmt::format("the peer sent without a credit (issued {}, returned {}, received {})", issued_,
                  returned_, received_));
}

absl::Status IssuedCredits::SentBeyondReserve() const {
  return absl::ResourceExhaustedError(
      fmt::format("the peer sent on its reserve of {} more often than that (seen {}, acknowledged "
                  "{})",
                  kReserveCredits, reserve_seen_, reserve_advertised_));
}

absl::Status IssuedCredits::TakeBack(uint32_t count) {
  if (count > outstanding() || count > surplus()) {
    return absl::InvalidArgumentError(
        fmt::format("the peer returns {} credits, but holds {}, of which {} are borrowed", count,
                    outstanding(), surplus()));
  }
  returned_ += count;
  window_ -= count;
  if (recalled()) recall_.Update(counts());
  pool_.GiveBack(count, share_);
  return absl::OkStatus();
}

uint32_t IssuedCredits::Grow(bool is_shared) {
  const uint32_t wanted = std::min(window_, max_window_ - window_);
  const uint32_t borrowed = pool_.Borrow(wanted, share_, is_shared);
  window_ += borrowed;
  return borrowed;
}

}  // namespace verbena::internal
