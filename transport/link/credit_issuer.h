// CreditIssuer: issues credits of an endpoint's pool over its busy links, and recalls them.
//
// A link that starves borrows what is free. If nothing is, this looks at kRecallCandidates links
// that hold some, at most, beginning with those that it looked at longest ago. Up to kRecallsAtOnce
// of them that were quiet since the last liveness check are asked for theirs (RECALL). If none was
// quiet, one busy link is. A source that holds fewer credits than the starving one is spared. The
// answers make the credits free for the next link that starves.
// Part of an Endpoint; one thread.

#ifndef VERBENA_TRANSPORT_LINK_CREDIT_ISSUER_H_
#define VERBENA_TRANSPORT_LINK_CREDIT_ISSUER_H_

#include <cstdint>

#include "verbena/transport/base/list.h"
#include "verbena/transport/link/credits.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

class CreditIssuer {
 public:
  explicit CreditIssuer(uint32_t credits) : pool_(credits) {}

  CreditPool& pool() { return pool_; }
  uint32_t borrowed() const { return pool_.borrowed(); }

  // Gives the peer of `link` a larger window if the pool has credits, and returns true. If it has
  // none, recalls credits from other links. A link that is being recalled, or is at its maximum,
  // gets nothing, and no other link is asked for it. `is_shared`: links to other source addresses
  // want some, too.
  bool Grow(Link& link, bool is_shared);
  // The peer of `link` has answered a recall, and may be asked again.
  void NoteRecallAnswered(Link& link);

 private:
  void RecallFor(Link& link, bool is_shared);

  CreditPool pool_;
  IntrusiveList<RecallableLink> recallable_;  // not being recalled; looked at longest ago first
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_CREDIT_ISSUER_H_
