// Credits: how many SENDs a link may still post without overrunning its peer's shared receive
// queue.
//
// One credit is one receive that the peer has set aside in its SRQ for this link. All links of an
// endpoint draw on one SRQ: each has an initial window and kReserveCredits of its own. The rest of
// the queue is a CreditPool, from which busy links borrow. The sum never passes the queue's depth,
// so that RNR NAKs cannot happen by construction. All counters on the wire are cumulative and wrap
// around: a lost or repeated one does no harm, and every claim of a peer is checked against what it
// can have seen.
//
//   sender                                   receiver
//   SendCredits::TrySpend()  --- SEND --->   IssuedCredits::OnSend()
//   SendCredits::OnHeader() <-- header ---  IssuedCredits::Refill()
//
// SendCredits and IssuedCredits with its CreditRecall are parts of a LinkSender. The CreditPool is
// part of a CreditIssuer, and that of an endpoint. All are on the executor's thread. A violation is
// returned as a Status that closes the link: its accounting can no longer be trusted.

#ifndef VERBENA_TRANSPORT_LINK_CREDITS_H_
#define VERBENA_TRANSPORT_LINK_CREDITS_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {

// Credits that the links to one source address have borrowed from a pool.
struct CreditShare {
  uint32_t borrowed = 0;
  uint32_t links = 0;  // that take part in the pool
};

// The receives of one SRQ that no link owns, to be borrowed.
//
// The links that hold some, or have asked for some, take part in the pool, and each has a fair
// share: the pool is divided evenly among their source addresses, and the part of an address among
// its links, but at least one credit. If the pool `is_shared` with other addresses, one part more
// is for the next one. With more links than credits the shares add up to more than the pool has:
// some links stay short, and no link borrows a second credit that one of them lacks.
class CreditPool {
 public:
  explicit CreditPool(uint32_t capacity) : free_(capacity), capacity_(capacity) {}

  // Takes up to `wanted` for `share`; returns how many. If the pool `is_shared` with other
  // addresses, the share borrows another credit only while it has fewer than are free.
  uint32_t Borrow(uint32_t wanted, CreditShare& share, bool is_shared);
  void GiveBack(uint32_t count, CreditShare& share);

  // A link of `share` takes part from now on, until Leave().
  void Join(CreditShare& share) {
    if (share.links++ == 0) ++sources_;
  }
  void Leave(CreditShare& share) {
    if (--share.links == 0) --sources_;
  }
  // The fair share of a link of `share` that takes part.
  uint32_t FairShare(const CreditShare& share, bool is_shared) const {
    // Never 0: then nobody would lack any, and who borrowed many early would keep them.
    return std::max(1u, capacity_ / (sources_ + (is_shared ? 1 : 0)) / share.links);
  }

  // Links that take part, have less than their fair share, and got nothing from the pool. While
  // there are some, no other borrows beyond its own: what is given back would never reach them.
  bool is_short() const { return short_links_ != 0; }
  void AddShort() { ++short_links_; }
  void RemoveShort() { --short_links_; }

  uint32_t free() const { return free_; }
  uint32_t borrowed() const { return capacity_ - free_; }

 private:
  uint32_t free_;
  uint32_t sources_ = 0;  // whose links take part
  uint32_t short_links_ = 0;
  const uint32_t capacity_;
};

// Counts the SENDs that this side may still make.
class SendCredits {
 public:
  // `issued`: what the peer's handshake offered.
  explicit SendCredits(uint32_t issued) : issued_(issued) {}

  uint32_t available() const { return issued_ - returned_ - spent_; }
  bool TrySpend() {
    if (available() == 0) return false;
    ++spent_;
    return true;
  }

  // SENDs without frames may use kReserveCredits more, until the peer has said that it saw them.
  bool TrySpendReserve() {
    if (static_cast<uint16_t>(reserve_spent_ - reserve_seen_) >= kReserveCredits) return false;
    ++reserve_spent_;
    return true;
  }

  // The counters of a header from the peer. INVALID_ARGUMENT when it takes back credits, issues
  // more than kMaxWindow, or has seen reserve SENDs that were never sent.
  absl::Status OnHeader(uint32_t issued, uint16_t reserve_seen) {
    // Modulo 2^32 a credit that was taken back looks like a huge one, so one comparison finds both.
    const bool plausible = issued - issued_ <= kMaxWindow &&
                           issued - returned_ - spent_ <= kMaxWindow &&
                           static_cast<uint16_t>(reserve_spent_ - reserve_seen) <= kReserveCredits;
    if (!plausible) return Implausible(issued, reserve_seen);
    issued_ = issued;
    reserve_seen_ = reserve_seen;
    return absl::OkStatus();
  }

  // The same of a compact SEND, which has the lower 16 bits of `issued` alone: no more than
  // kMaxWindow credits are issued between two SENDs.
  absl::Status OnCompactHeader(uint16_t issued) {
    const auto grown = static_cast<uint16_t>(issued - static_cast<uint16_t>(issued_));
    return OnHeader(issued_ + grown, reserve_seen_);
  }

  // Answers a recall: returns unspent credits but one, as long as the sum of all that were ever
  // returned stays within `limit`, modulo 2^32. So recalls that were sent before the answer to an
  // earlier one came do not add up. The next header tells the peer, and the credit that is kept
  // lets it leave: the peer may issue none until it comes. Returns how many.
  uint32_t GiveBackWithin(uint32_t limit);

  // For the header's credits_returned.
  uint32_t returned() const { return returned_; }

 private:
  absl::Status Implausible(uint32_t issued, uint16_t reserve_seen) const;

  uint32_t issued_;
  uint32_t returned_ = 0;
  uint32_t spent_ = 0;
  uint16_t reserve_spent_ = 0;
  uint16_t reserve_seen_ = 0;
};

// CreditRecall: what one link's peer is asked to return of the credits that it borrowed.
//
// This side issues nothing while the recall is open. So credits that were asked for are free when
// the peer returns them, and also when it spends them: a busy peer that returns none keeps none.
// One that frees too few within kMaxUnansweredRecalls liveness checks loses its link.
//
// The peer's SENDs may have freed enough before its answer comes. So the recall counts how many
// credits the peer may still return for this and earlier recalls. These do not narrow its window
// again: this side issues them anew.
//
// Part of an IssuedCredits, which counts the credits; on its link's executor's thread.
//
//   recall.Begin(asked);
//   count -= recall.Answer(count);  // the peer has returned `count`: the rest it was not asked for
//   recall.Free(freed);             // open() may be false now
//   absl::Status status = recall.Check(is_due);  // at each liveness check
class CreditRecall {
 public:
  // The peer is asked for `asked` credits, from now until open() is false again. A recall that is
  // open begins anew.
  void Begin(uint32_t asked);
  bool open() const { return missing_ != 0; }
  // Credits that the peer is asked for, and that are not free yet.
  uint32_t missing() const { return missing_; }
  // `count` more are free. Precondition: no more than missing().
  void Free(uint32_t count) { missing_ -= count; }
  // The peer has returned `count` credits. Returns how many of them it was asked for, at any time.
  uint32_t Answer(uint32_t count);
  // At each liveness check while open(). RESOURCE_EXHAUSTED after kMaxUnansweredRecalls checks, or
  // after kMaxUnsentRecalls checks that found the RECALL still due (`is_due`), because the peer
  // issues no credits.
  absl::Status Check(bool is_due);

 private:
  uint32_t missing_ = 0;
  // An honest peer may still return so many: the most that a RECALL allowed, less what the peer has
  // returned since. At least missing_, and at most what the peer once had borrowed.
  uint32_t answerable_ = 0;
  uint32_t checks_ = 0;
  uint32_t checks_unsent_ = 0;
};

// Counts the SENDs that the peer may still make to this side. Its initial window is its own; what
// it has beyond comes from `pool`, and goes back there in the destructor at the latest.
//
// The window is what the peer holds, outstanding(), and what this side has yet to issue. While the
// peer is asked for credits, each that it does not hold goes back to the pool, so the window is
// never wider than outstanding().
class IssuedCredits {
 public:
  // `share` belongs to the peer's address. It and `pool` outlive this object.
  IssuedCredits(CreditPool& pool, CreditShare& share, uint32_t initial_window, uint32_t max_window);
  IssuedCredits(const IssuedCredits&) = delete;
  IssuedCredits& operator=(const IssuedCredits&) = delete;
  ~IssuedCredits();

  // A SEND arrived. RESOURCE_EXHAUSTED when the peer had no credit for it: no ordinary one, or
  // kReserveCredits of its SENDs on the reserve are not acknowledged yet.
  absl::Status OnSend(bool spends_reserve) {
    if (spends_reserve) {
      const auto unacknowledged = static_cast<uint16_t>(reserve_seen_ - reserve_advertised_);
      if (unacknowledged >= kReserveCredits) return SentBeyondReserve();
      ++reserve_seen_;
    } else {
      if (outstanding() == 0) return SentWithoutCredit();
      ++received_;
    }
    return absl::OkStatus();
  }
  // The header's credits_returned. Those that the peer was not asked for narrow the window.
  // INVALID_ARGUMENT if the peer returns more than it holds, or was asked for and has borrowed.
  absl::Status OnReturned(uint32_t returned) {
    return returned == returned_ ? absl::OkStatus() : CountReturned(returned - returned_);
  }
  // Call while recalled(), when the counters of a SEND are counted: takes back what the peer holds
  // no more, of what it was asked for. recalled() may be false afterwards.
  void SettleRecall() { recall_.Free(TakeUnissued(recall_.missing())); }

  // Takes part in the pool from now on. Doubles the window, as far as the pool and the maximum go;
  // up to its fair share only, while the pool is_short(). Returns by how much it grew.
  // Precondition: not recalled().
  uint32_t Grow(bool is_shared);
  // A liveness check has found whether the peer sent since the last one. A link that did not, and
  // has borrowed nothing, takes part in the pool no more.
  void NoteChecked(bool heard);
  // The link is lost: it takes part no more. What it borrowed goes back in the destructor.
  void LeavePool();
  // From the first Grow() on, until it leaves or all that the peer borrowed is back in the pool.
  bool takes_part() const { return takes_part_; }
  // Credits that it has borrowed beyond its fair share, and what it lacks of that, as far as its
  // maximum goes. Precondition: takes_part().
  uint32_t excess(bool is_shared) const;
  uint32_t lacking(bool is_shared) const;

  // Raises what the peer may send to the full window; the next header carries total(). Call after
  // the receives have been reposted.
  void Refill() {
    VERBENA_DCHECK(!recalled() || window_ == outstanding())
        << "SettleRecall() was not called: " << window_ - outstanding()
        << " credits that the peer is asked for would be issued anew";
    issued_ += window_ - outstanding();
  }
  uint32_t total() const { return issued_; }
  uint16_t reserve_seen() const { return reserve_seen_; }

  // Records that a header carries total() and reserve_seen().
  void MarkAdvertised() {
    advertised_ = issued_;
    reserve_advertised_ = reserve_seen_;
  }
  // Half a window that the peer does not know of yet: worth a SEND of its own.
  bool ShouldAdvertise() const {
    return issued_ + window_ - outstanding() - advertised_ >= (window_ + 1) / 2;
  }

  // Credits that the peer holds unspent, as far as this side knows.
  uint32_t outstanding() const { return issued_ - returned_ - received_; }
  uint32_t window() const { return window_; }
  // The links to the peer's address borrow together; this is their part of the pool.
  const CreditShare& share() const { return share_; }
  bool at_maximum() const { return window_ >= max_window_; }
  // The borrowed part of the window, which a recall may ask for.
  uint32_t surplus() const { return window_ - initial_window_; }

  // Takes `count` credits back, the surplus at most: at once what is not issued. The peer is asked
  // for the others until recalled() is false, which it may be at once. Until then call
  // SettleRecall() after each SEND, and CheckRecall() at each liveness check.
  void Recall(uint32_t count);
  // For a RECALL frame that leaves now: how many credits the peer may return in all, modulo 2^32.
  uint32_t recall_limit() const { return returned_ + recall_.missing(); }
  bool recalled() const { return recall_.open(); }
  absl::Status CheckRecall(bool is_due) { return recall_.Check(is_due); }

 private:
  absl::Status SentWithoutCredit() const;
  [[gnu::cold, gnu::noinline]] absl::Status SentBeyondReserve() const;
  absl::Status CountReturned(uint32_t count);
  // Narrows the window by what the peer does not hold of it, but by `most` at most, which the
  // surplus covers. Returns by how much.
  uint32_t TakeUnissued(uint32_t most);
  void NarrowWindow(uint32_t count);
  void SetShort(bool is_short);

  CreditPool& pool_;
  CreditShare& share_;
  const uint32_t initial_window_;
  const uint32_t max_window_;
  uint32_t window_;
  uint32_t issued_;
  uint32_t advertised_;
  uint32_t returned_ = 0;
  uint32_t received_ = 0;
  uint16_t reserve_seen_ = 0;
  uint16_t reserve_advertised_ = 0;
  CreditRecall recall_;
  bool takes_part_ = false;
  bool is_short_ = false;  // counts in the pool's is_short()
};

// RecallableLink: a link as a CreditIssuer sees it. While it is in one of the issuer's lists, its
// peer may be asked for credits.
//
// Implemented by Link, which leaves the list as it closes. On its executor's thread.
class RecallableLink : public IntrusiveNode<RecallableLink> {
 public:
  virtual IssuedCredits& issued() = 0;
  // IssuedCredits::Recall(). The peer is asked by a RECALL.
  virtual void Recall(uint32_t count) = 0;
  // Whether a SEND has come since the last liveness check.
  virtual bool heard() const = 0;

 protected:
  ~RecallableLink() = default;
};

// CreditIssuer: issues credits of an endpoint's pool over its busy links, and recalls them.
//
// A link that starves borrows what is free. If nothing is, peers of others are asked for credits
// (RECALL), and are issued none until they have returned or spent as many. These are free for links
// that starve later. First come links that were quiet at their last liveness check and still are,
// up to kRecallsAtOnce: these are asked for all that they borrowed. If there are none, one busy
// link is asked for what it has beyond its fair share, if the link that starves has less than its
// own. A source that holds fewer credits than the starving one is spared.
//
// With a thousand links that starve, each look at another link is a cache miss. So a quiet link is
// looked at once after each of its checks, and kRecallCandidates for one link that starves. Of the
// busy ones, a link that lacks some of its fair share has one looked at, the one that was looked at
// or checked longest ago. A link that lacks none has none looked at. So links that go on starving
// share the pool out, and then recall nothing. If there are more of them than credits, those that
// have none still have one link looked at each time.
//
// Part of an Endpoint; one thread.
class CreditIssuer {
 public:
  explicit CreditIssuer(uint32_t credits) : pool_(credits) {}

  CreditPool& pool() { return pool_; }
  uint32_t borrowed() const { return pool_.borrowed(); }

  // Gives the peer of `link`, which is open, a larger window if the pool has credits, and returns
  // true. If it has none, recalls credits from other links. A link that is being recalled, or is at
  // its maximum, gets nothing, and no other link is asked for it. `is_shared`: links to other
  // source addresses want some, too.
  bool Grow(RecallableLink& link, bool is_shared);
  // A recall of `link`, which is open, has ended: its peer may be asked again.
  void NoteRecallAnswered(RecallableLink& link);
  // A liveness check of `link`, which is linked(), has found whether a SEND came since the check
  // before: it is busy or quiet until the next one.
  void NoteChecked(RecallableLink& link, bool heard);

 private:
  // True if quiet links were asked for what they borrowed.
  bool RecallQuiet(RecallableLink& link, bool is_shared);
  void RecallBusy(RecallableLink& link, bool is_shared);

  CreditPool pool_;
  // Links that take part in the pool, and are not being recalled. A quiet one may have become busy
  // since its check. One that has left the pool is dropped when it is looked at.
  IntrusiveList<RecallableLink> quiet_;
  IntrusiveList<RecallableLink> busy_;  // looked at or checked longest ago first
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_CREDITS_H_
