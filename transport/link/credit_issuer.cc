#include "verbena/transport/link/credit_issuer.h"

#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/peer_host.h"

namespace verbena::internal {

bool CreditIssuer::Grow(Link& link, bool is_shared) {
  // A link that may borrow no more takes nothing from others.
  if (link.issued().recalled() || link.issued().at_maximum()) return false;
  if (link.GrowWindow(is_shared) == 0) {
    RecallFor(link, is_shared);
    return false;
  }
  RecallableLink& recallable = link;
  if (!recallable.linked()) recallable_.PushBack(recallable);
  return true;
}

// Links to another address that has fewer give nothing.
void CreditIssuer::RecallFor(Link& link, bool is_shared) {
  const PeerSource& source = link.source();
  int asked = 0;
  Link* busy = nullptr;
  for (int i = 0; i < kRecallCandidates && asked < kRecallsAtOnce; ++i) {
    RecallableLink* recallable = recallable_.PopFront();
    if (recallable == nullptr) break;
    Link* candidate = static_cast<Link*>(recallable);
    if (!candidate->open() || candidate->issued().surplus() == 0) continue;
    const bool has_less = is_shared && &candidate->source() != &source &&
                          candidate->source().credits.borrowed < source.credits.borrowed;
    if (candidate == &link || has_less || candidate->heard()) {
      recallable_.PushBack(*recallable);
      if (candidate != &link && !has_less && busy == nullptr) busy = candidate;
      continue;
    }
    candidate->Recall();
    ++asked;
  }
  if (asked > 0 || busy == nullptr) return;
  busy->RecallableLink::Unlink();
  busy->Recall();
}

void CreditIssuer::NoteRecallAnswered(Link& link) {
  RecallableLink& recallable = link;
  if (link.issued().surplus() > 0 && !recallable.linked()) recallable_.PushBack(recallable);
}

}  // namespace verbena::internal
