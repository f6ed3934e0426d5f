#include "verbena/transport/link/credits.h"

#include <algorithm>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/link/limits.h"

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

void CreditRecall::Begin(const Counts& counts) {
  *this = {};
  open_ = true;
  asked_ = counts.surplus;
  returned_before_ = counts.returned;
  received_before_ = counts.received;
}

bool CreditRecall::IsAnswered(const Counts& counts) const {
  const uint32_t returned = counts.returned - returned_before_;
  const uint32_t received = counts.received - received_before_;
  return returned + received >= (returned != 0 ? asked_ : counts.window);
}

absl::Status CreditRecall::Check(const Counts& counts, bool is_due) {
  Update(counts);
  if (!open_) return absl::OkStatus();
  if (is_due) {
    if (++checks_unsent_ <= kMaxUnsentRecalls) return absl::OkStatus();
    return absl::ResourceExhaustedError(fmt::format(
        "the peer issued no credit for the RECALL of the {} that it borrowed, for {} checks",
        counts.surplus, checks_unsent_));
  }
  if (++checks_ <= kMaxUnansweredRecalls) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("the peer was asked for credits {} checks ago, and keeps {} that it borrowed",
                  checks_, counts.surplus));
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

bool CreditIssuer::Grow(RecallableLink& link, bool is_shared) {
  // A link that may borrow no more takes nothing from others.
  if (link.issued().recalled() || link.issued().at_maximum()) return false;
  if (link.issued().Grow(is_shared) == 0) {
    RecallFor(link, is_shared);
    return false;
  }
  if (!link.linked()) recallable_.PushBack(link);
  return true;
}

// Links to another address that has fewer give nothing.
void CreditIssuer::RecallFor(RecallableLink& link, bool is_shared) {
  const uint32_t borrowed = link.issued().share().borrowed;
  int asked = 0;
  RecallableLink* busy = nullptr;
  for (int i = 0; i < kRecallCandidates && asked < kRecallsAtOnce; ++i) {
    RecallableLink* candidate = recallable_.PopFront();
    if (candidate == nullptr) break;
    if (candidate->issued().surplus() == 0) continue;
    const bool has_less = is_shared && candidate->issued().share().borrowed < borrowed;
    if (candidate == &link || has_less || candidate->heard()) {
      recallable_.PushBack(*candidate);
      if (candidate != &link && !has_less && busy == nullptr) busy = candidate;
      continue;
    }
    candidate->Recall();
    ++asked;
  }
  if (asked > 0 || busy == nullptr) return;
  busy->Unlink();
  busy->Recall();
}

void CreditIssuer::NoteRecallAnswered(RecallableLink& link) {
  if (link.issued().surplus() > 0 && !link.linked()) recallable_.PushBack(link);
}

}  // namespace verbena::internal
