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
  const uint32_t spare = available() > 0 ? available() - 1 : 0;
  const uint32_t count = std::min(wanted, spare);
  returned_ += count;
  return count;
}

void CreditRecall::Begin(uint32_t asked) {
  missing_ = asked;
  answerable_ = std::max(answerable_, asked);
  checks_ = 0;
  checks_unsent_ = 0;
}

uint32_t CreditRecall::Answer(uint32_t count) {
  const uint32_t asked_for = std::min(count, answerable_);
  answerable_ -= asked_for;
  return asked_for;
}

absl::Status CreditRecall::Check(bool is_due) {
  if (is_due) {
    if (++checks_unsent_ <= kMaxUnsentRecalls) return absl::OkStatus();
    return absl::ResourceExhaustedError(fmt::format(
        "the peer issued no credit for the RECALL of {} that it borrowed, for {} checks", missing_,
        checks_unsent_));
  }
  if (++checks_ <= kMaxUnansweredRecalls) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format(
      "the peer was asked for credits {} checks ago, and keeps {} of them", checks_, missing_));
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

IssuedCredits::~IssuedCredits() {
  pool_.GiveBack(surplus(), share_);
  LeavePool();
}

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

absl::Status IssuedCredits::CountReturned(uint32_t count) {
  const uint32_t holds = outstanding();
  const uint32_t unasked = count - recall_.Answer(count);
  // The recall alone may take the credits that it misses.
  if (count > holds || unasked > surplus() - recall_.missing()) {
    return absl::InvalidArgumentError(fmt::format(
        "the peer returns {} credits, but holds {}, of which {} are borrowed, and was not asked "
        "for {}",
        count, holds, surplus(), unasked));
  }
  returned_ += count;
  NarrowWindow(unasked);
  return absl::OkStatus();
}

uint32_t IssuedCredits::TakeUnissued(uint32_t most) {
  const uint32_t count = std::min(most, window_ - outstanding());
  NarrowWindow(count);
  return count;
}

void IssuedCredits::NarrowWindow(uint32_t count) {
  // A link that has borrowed nothing yet may take part.
  if (count == 0) return;
  window_ -= count;
  pool_.GiveBack(count, share_);
  if (surplus() == 0) LeavePool();
}

uint32_t IssuedCredits::Grow(bool is_shared) {
  VERBENA_DCHECK(!recalled()) << "credits for a peer that is asked for " << recall_.missing();
  if (!takes_part_) {
    takes_part_ = true;
    pool_.Join(share_);
  }
  uint32_t wanted = std::min(window_, max_window_ - window_);
  if (pool_.is_short()) wanted = std::min(wanted, lacking(is_shared));
  const uint32_t borrowed = pool_.Borrow(wanted, share_, is_shared);
  window_ += borrowed;
  SetShort((borrowed == 0 || is_short_) && lacking(is_shared) > 0);
  return borrowed;
}

// A link that is still short asks again.
void IssuedCredits::NoteChecked(bool heard) {
  SetShort(false);
  if (!heard && surplus() == 0) LeavePool();
}

void IssuedCredits::Recall(uint32_t count) {
  VERBENA_DCHECK(count <= surplus())
      << "a recall of " << count << " of " << surplus() << " borrowed credits";
  SetShort(false);
  recall_.Begin(count - TakeUnissued(count));
}

uint32_t IssuedCredits::excess(bool is_shared) const {
  const uint32_t fair = pool_.FairShare(share_, is_shared);
  return surplus() > fair ? surplus() - fair : 0;
}

uint32_t IssuedCredits::lacking(bool is_shared) const {
  const uint32_t fair = std::min(pool_.FairShare(share_, is_shared), max_window_ - initial_window_);
  return fair > surplus() ? fair - surplus() : 0;
}

void IssuedCredits::SetShort(bool is_short) {
  if (is_short && !is_short_) pool_.AddShort();
  if (!is_short && is_short_) pool_.RemoveShort();
  is_short_ = is_short;
}

void IssuedCredits::LeavePool() {
  if (!takes_part_) return;
  SetShort(false);
  pool_.Leave(share_);
  takes_part_ = false;
}

bool CreditIssuer::Grow(RecallableLink& link, bool is_shared) {
  IssuedCredits& credits = link.issued();
  // A link that may borrow no more takes nothing from others.
  if (credits.recalled() || credits.at_maximum()) return false;
  const bool grown = credits.Grow(is_shared) != 0;
  if (!link.linked()) busy_.PushBack(link);
  if (!grown && !RecallQuiet(link, is_shared)) RecallBusy(link, is_shared);
  return grown;
}

// A link that is not asked counts as busy until its next check, so that it is not looked at again.
bool CreditIssuer::RecallQuiet(RecallableLink& link, bool is_shared) {
  const uint32_t borrowed = link.issued().share().borrowed;
  int asked = 0;
  for (int i = 0; i < kRecallCandidates && asked < kRecallsAtOnce; ++i) {
    RecallableLink* candidate = quiet_.PopFront();
    if (candidate == nullptr) break;
    IssuedCredits& credits = candidate->issued();
    if (!credits.takes_part()) continue;
    const bool has_less = is_shared && credits.share().borrowed < borrowed;
    if (credits.surplus() == 0 || has_less || candidate->heard() || candidate == &link) {
      busy_.PushBack(*candidate);
      continue;
    }
    candidate->Recall(credits.surplus());
    ++asked;
  }
  return asked > 0;
}

void CreditIssuer::RecallBusy(RecallableLink& link, bool is_shared) {
  const IssuedCredits& starving = link.issued();
  if (starving.lacking(is_shared) == 0) return;
  // The starving link goes last: it is looked at only if it is alone.
  link.Unlink();
  busy_.PushBack(link);
  RecallableLink* candidate = busy_.PopFront();
  IssuedCredits& credits = candidate->issued();
  if (!credits.takes_part()) return;
  const bool has_less = is_shared && credits.share().borrowed < starving.share().borrowed;
  const uint32_t excess = credits.excess(is_shared);
  if (has_less || excess == 0) {
    busy_.PushBack(*candidate);
    return;
  }
  candidate->Recall(excess);
}

void CreditIssuer::NoteRecallAnswered(RecallableLink& link) {
  if (link.issued().takes_part() && !link.linked()) busy_.PushBack(link);
}

void CreditIssuer::NoteChecked(RecallableLink& link, bool heard) {
  link.Unlink();
  link.issued().NoteChecked(heard);
  if (link.issued().takes_part()) (heard ? busy_ : quiet_).PushBack(link);
}

}  // namespace verbena::internal
