#include "verbena/transport/link/credit_recall.h"

#include "fmt/format.h"
#include "verbena/transport/link/limits.h"

namespace verbena::internal {

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

}  // namespace verbena::internal
