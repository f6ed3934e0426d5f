// DedupeAttempt: one attempt of a deduplicated call, on the client.
//
// Gives the attempt its name, and keeps account in its DedupeToken of the servers that may have run
// the call. Lives in the frame of the coroutine that makes the attempt; on its executor's thread.
// One that is destroyed before End() may have run.

#ifndef VERBENA_RPC_CLIENT_DEDUPE_H_
#define VERBENA_RPC_CLIENT_DEDUPE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/dedupe.h"

namespace verbena::internal {

// The status of the last attempt of a call, as the caller hears it: kMaybeExecuted instead of
// kNotExecuted if an earlier attempt may have run the call.
absl::Status StatusOfCall(const DedupeToken& token, absl::Status last);

class DedupeAttempt final : public ContextSentListener {
 public:
  // Binds the token to the channel that owns `client`. INVALID_ARGUMENT if the token belongs to
  // another channel or executor.
  static absl::Status Bind(DedupeToken& token, const std::shared_ptr<DedupeClient>& client);

  // Begins an attempt of `token`, which is bound and outlives the attempt. Puts the name into
  // `context`, which must not be sent once the attempt is destroyed.
  DedupeAttempt(DedupeToken& token, CallContext& context);
  DedupeAttempt(const DedupeAttempt&) = delete;
  DedupeAttempt& operator=(const DedupeAttempt&) = delete;
  ~DedupeAttempt();

  // The attempt has ended with `status`.
  void End(const absl::Status& status);

  void OnContextSent(uint64_t incarnation) override;

 private:
  // The attempt has been sent, or has ended.
  void Settle();
  // The server says that it has not run this attempt.
  void Withdraw();

  DedupeToken& token_;
  bool unsent_ = true;    // not sent, and not ended
  uint64_t sent_to_ = 0;  // incarnation; 0: not sent, or unknown
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_DEDUPE_H_
