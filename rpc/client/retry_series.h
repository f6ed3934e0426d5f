// RetrySeries: decides after each failed attempt of a call whether another one follows, and when.
//
// Lives in the frame of the coroutine that makes the call; on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_RETRY_SERIES_H_
#define VERBENA_RPC_CLIENT_RETRY_SERIES_H_

#include <optional>

#include "absl/status/status.h"
#include "verbena/rpc/client/retry_account.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/retry.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/random.h"

namespace verbena::internal {

class RetrySeries {
 public:
  struct Failure {
    const absl::Status& status;
    bool timed_out = false;       // by RetryPolicy::attempt_timeout
    bool has_its_buffers = true;  // the next attempt can use the caller's memory
    TimePoint now;
    TimePoint deadline = kNever;  // the call's
  };

  // All outlive it. The first attempt begins.
  RetrySeries(const RetryPolicy& policy, const MethodDescriptor& method, RetryAccount& account,
              Random& random = Random::Real());

  // The pause before the next attempt; nothing if none follows.
  std::optional<Duration> After(const Failure& failure);
  // The pause is over, and the next attempt begins.
  void Begin();
  // How many have begun.
  int attempts() const { return attempts_; }

 private:
  Duration NextBackoff();
  Duration PauseAfter(const absl::Status& failure);

  const RetryPolicy& policy_;
  const MethodDescriptor& method_;
  RetryAccount& account_;
  Random& random_;
  Duration backoff_;
  int attempts_ = 1;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_RETRY_SERIES_H_
