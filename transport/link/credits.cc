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

absl::Status SendCredits::OnHeader(uint32_t granted, uint16_t reserve_seen) {
  // Modulo 2^32 a grant that was taken back looks like a huge one, so one comparison finds both.
  const uint32_t now_available = granted - returned_ - spent_;
  if (granted - granted_ > kMaxWindow || now_available > kMaxWindow) {
    return absl::InvalidArgumentError(fmt::format(
        "the peer claims to have granted {} credits in all, after {} of which {} are spent",
        granted, granted_, spent_));
  }
  if (static_cast<uint16_t>(reserve_spent_ - reserve_seen) > kReserveCredits) {
    return absl::InvalidArgumentError(fmt::format(
        "the peer claims to have seen {} reserve SENDs of {}", reserve_seen, reserve_spent_));
  }
  granted_ = granted;
  reserve_seen_ = reserve_seen;
  return absl::OkStatus();
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

absl::Status ReceiveGrants::OnSend(bool spends_reserve) {
  if (spends_reserve) {
    ++reserve_seen_;
    return absl::OkStatus();
  }
  if (outstanding() == 0) {
    return absl::ResourceExhaustedError(
        fmt::format("the peer sent without a credit (granted {}, returned {}, received {})",
                    granted_, returned_, received_));
  }
  ++received_;
  return absl::OkStatus();
}

absl::Status ReceiveGrants::OnReturned(uint32_t returned) {
  const uint32_t count = returned - returned_;
  if (count == 0) return absl::OkStatus();
  if (count > outstanding() || count > surplus()) {
    return absl::InvalidArgumentError(
        fmt::format("the peer gives back {} credits, but holds {} of which {} were lent", count,
                    outstanding(), surplus()));
  }
  returned_ = returned;
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
