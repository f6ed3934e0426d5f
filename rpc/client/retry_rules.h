// The rules by which a call may have a further attempt without running a mutation twice.
//
// Policies choose among the attempts that these rules allow, and never go beyond them. Pure
// functions.

#ifndef VERBENA_RPC_CLIENT_RETRY_RULES_H_
#define VERBENA_RPC_CLIENT_RETRY_RULES_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/outcome.h"

namespace verbena::internal {

// Whether a call of `method` may be sent a second time after it has run, perhaps in part. The
// server runs a deduplicated one once, however often it is sent.
inline bool MayRunTwice(const MethodDescriptor& method) {
  return method.idempotency != Idempotency::kUnknown || method.dedupe;
}

// Whether a call of `method` may have a further attempt after one that ended with `failure`.
inline bool MayRunAgain(const MethodDescriptor& method, const absl::Status& failure) {
  return OutcomeOf(failure) == Outcome::kNotExecuted || MayRunTwice(method);
}

// Whether a further attempt must go to the server of one that may have run: no other one knows that
// the call is a repetition.
inline bool StaysWithItsServer(const MethodDescriptor& method) {
  if (method.dedupe) return true;
  return method.idempotency == Idempotency::kUnknown;
}

// Whether each further attempt would end with the same `failure`: the server keeps the result of a
// deduplicated call.
inline bool IsKept(const MethodDescriptor& method, const absl::Status& failure) {
  return method.dedupe && OutcomeOf(failure) == Outcome::kExecuted;
}

// Whether attempts of a call may run side by side. Two that are idempotent may still run one
// another's writes over in an order that no single attempt has. A deduplicated call must not go to
// two servers.
inline bool MayRunAtOnce(const MethodDescriptor& method) {
  if (method.dedupe) return false;
  return method.idempotency == Idempotency::kNoSideEffects;
}

inline bool HasCode(const std::vector<absl::StatusCode>& codes, const absl::Status& failure) {
  return std::find(codes.begin(), codes.end(), failure.code()) != codes.end();
}

// The outcome of a call that has had several attempts: what all of them together may have done.
class CombinedOutcome {
 public:
  void Add(const absl::Status& attempt) {
    const Outcome outcome = OutcomeOf(attempt);
    if (outcome == Outcome::kMaybeExecuted || outcome_ == Outcome::kNotExecuted) outcome_ = outcome;
  }
  bool may_have_run() const { return outcome_ != Outcome::kNotExecuted; }
  // `failure`, the call's, with that outcome.
  absl::Status Of(absl::Status failure) const {
    if (OutcomeOf(failure) == outcome_) return failure;
    return WithOutcome(std::move(failure), outcome_);
  }

 private:
  Outcome outcome_ = Outcome::kNotExecuted;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_RETRY_RULES_H_
