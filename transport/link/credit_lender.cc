#include "verbena/transport/link/credit_lender.h"

#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/peer_source.h"

namespace verbena::internal {

bool CreditLender::Grow(Link& link, bool is_shared) {
  // A link that may borrow no more takes nothing from others.
  if (link.issued().recalled() || link.issued().at_maximum()) return false;
  if (link.GrowWindow(is_shared) == 0) {
    RecallFor(link, is_shared);
    return false;
  }
  BorrowingLink& borrowing = link;
  if (!borrowing.linked()) borrowing_.PushBack(borrowing);
  return true;
}

// Links to another address that has fewer give nothing.
void CreditLender::RecallFor(Link& link, bool is_shared) {
  const PeerSource& source = link.source();
  int asked = 0;
  Link* busy = nullptr;
  for (int i = 0; i < kRecallCandidates && asked < kRecallsAtOnce; ++i) {
    BorrowingLink* borrowing = borrowing_.PopFront();
    if (borrowing == nullptr) break;
    Link* candidate = static_cast<Link*>(borrowing);
    if (!candidate->open() || candidate->issued().surplus() == 0) continue;
    const bool has_less = is_shared && &candidate->source() != &source &&
                          candidate->source().credits.borrowed < source.credits.borrowed;
    if (candidate == &link || has_less || candidate->heard()) {
      borrowing_.PushBack(*borrowing);
      if (candidate != &link && !has_less && busy == nullptr) busy = candidate;
      continue;
    }
    candidate->Recall();
    ++asked;
  }
  if (asked > 0 || busy == nullptr) return;
  busy->BorrowingLink::Unlink();
  busy->Recall();
}

void CreditLender::NoteRecallAnswered(Link& link) {
  BorrowingLink& borrowing = link;
  if (link.issued().surplus() > 0 && !borrowing.linked()) borrowing_.PushBack(borrowing);
}

}  // namespace verbena::internal
