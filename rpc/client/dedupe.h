// DedupeClient: the names of a channel's deduplicated calls on one executor. DedupeAttempt: one
// attempt at such a call.
//
// A DedupeAttempt gives the attempt its name, and keeps account in its DedupeToken of the servers
// that may have run the call. Lives in the frame of the coroutine that makes the attempt; on its
// executor's thread. One that is destroyed before End() may have run.

#ifndef VERBENA_RPC_CLIENT_DEDUPE_H_
#define VERBENA_RPC_CLIENT_DEDUPE_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/dedupe.h"

namespace verbena::internal {

// The names that a channel gives its calls on one executor. Shared by the channel and its tokens;
// on that executor's thread. Bounded by the tokens.
class DedupeClient {
 public:
  explicit DedupeClient(const std::array<uint8_t, 16>& random_bits) : bits_(random_bits) {}

  const std::array<uint8_t, 16>& bits() const { return bits_; }
  // A fresh number, which is open until Close().
  uint64_t Open();
  void Close(uint64_t number) { open_.erase(number); }
  // The last one that Open() gave; 0 before the first.
  uint64_t highest() const { return next_ - 1; }
  // No number below it is open, or will be.
  uint64_t acknowledged_below() const { return open_.empty() ? next_ : *open_.begin(); }

 private:
  const std::array<uint8_t, 16> bits_;
  uint64_t next_ = 1;
  absl::btree_set<uint64_t> open_;
};

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

  void OnContextSent(CallContext& context, uint64_t incarnation) override;

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
