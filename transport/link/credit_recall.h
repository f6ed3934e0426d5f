// CreditRecall: one link's request that its peer return the credits that it borrowed, and whether
// the peer has answered.
//
// The peer has answered once the credits that it returned and the SENDs that it made since add up
// to what it was asked for. If it returned nothing, it has answered once it has sent a whole
// window: it had none to spare. A peer that does neither within kMaxUnansweredRecalls liveness
// checks loses its link.
//
// Part of an IssuedCredits, which counts the credits; on its link's executor's thread.
//
//   recall.Begin(counts);
//   recall.Update(counts);  // the peer has returned some: open() may be false now
//   absl::Status status = recall.Check(counts, is_due);  // at each liveness check

#ifndef VERBENA_TRANSPORT_LINK_CREDIT_RECALL_H_
#define VERBENA_TRANSPORT_LINK_CREDIT_RECALL_H_

#include <cstdint>

#include "absl/status/status.h"

namespace verbena::internal {

class CreditRecall {
 public:
  // The credits of the link, as IssuedCredits counts them. The first two wrap around.
  struct Counts {
    uint32_t returned;  // by the peer
    uint32_t received;  // SENDs of the peer that spent one
    uint32_t window;
    uint32_t surplus;  // the borrowed part of the window
  };

  // The peer is asked for the surplus, from now until open() is false again. A recall that is open
  // begins anew.
  void Begin(const Counts& counts);
  bool open() const { return open_; }
  // Call when the peer has returned credits while open().
  void Update(const Counts& counts) { open_ = !IsAnswered(counts); }
  // Updates, at each liveness check while open(). RESOURCE_EXHAUSTED after kMaxUnansweredRecalls
  // checks without an answer, or after kMaxUnsentRecalls checks that found the RECALL still due
  // (`is_due`), because the peer issues no credits.
  absl::Status Check(const Counts& counts, bool is_due);

 private:
  bool IsAnswered(const Counts& counts) const;

  bool open_ = false;
  uint32_t checks_ = 0;
  uint32_t checks_unsent_ = 0;
  uint32_t asked_ = 0;
  uint32_t returned_before_ = 0;
  uint32_t received_before_ = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_CREDIT_RECALL_H_
