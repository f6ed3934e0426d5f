#include "verbena/transport/link/credits.h"

#include <algorithm>
#include <cassert>

#include "fmt/format.h"

namespace verbena {

uint32_t CreditPool::Borrow(uint32_t wanted) {
  const uint32_t lent = std::min(wanted, free_);
  free_ -= lent;
  return lent;
}

void CreditPool::GiveBack(uint32_t count) {
  free_ += count;
  assert(free_ <= capacity_);
}

absl::Status SendCredits::Implausible(uint32_t granted, uint16_t reserve_seen) const {
  if (static_cast<uint16_t>(reserve_spent_ - reserve_seen) > kReserveCredits) {
    return absl::InvalidArgumentError(fmt::format(
        "the peer claims to have seen {} reserve SENDs of {}", reserve_seen, reserve_spent_));
  }
  return absl::InvalidArgumentError(fmt::format(
      "the peer claims to have granted {} credits in all, after {} of which {} are spent", granted,
      granted_, spent_));
}

uint32_t SendCredits::GiveBack(uint32_t wanted) {
  const uint32_t count = std::min(wanted, available());
  returned_ += count;
  return count;
}

ReceiveGrants::ReceiveGrants(CreditPool& pool, uint32_t initial_window, uint32_t max_window)
    : pool_(pool),
      initial_window_(initial_window),
      max_window_(max_window),
      window_(initial_window),
      granted_(initial_window),
      advertised_(initial_window) {}

absl::Status ReceiveGrants::SentWithoutCredit() const {
  return absl::ResourceExhaustedError(
      fmt::format("the peer sent without a credit (granted {}, returned {}, received {})", granted_,
                  returned_, received_));
}

absl::Status ReceiveGrants::TakeBack(uint32_t count) {
  if (count > outstanding() || count > surplus()) {
    return absl::InvalidArgumentError(
        fmt::format("the peer gives back {} credits, but holds {} of which {} were lent", count,
                    outstanding(), surplus()));
  }
  returned_ += count;
  window_ -= count;
  pool_.GiveBack(count);
  return absl::OkStatus();
}

uint32_t ReceiveGrants::Grow() {
  const uint32_t wanted = std::min(window_, max_window_ - window_);
  const uint32_t lent = pool_.Borrow(wanted);
  window_ += lent;
  return lent;
}

}  // namespace verbena
