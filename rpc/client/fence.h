// AttemptFence: lets a further attempt of a call begin only when no earlier one goes on at the same
// server. KeptSlot: the slot of an attempt that was given up.
//
// Part of RetriedCall()'s coroutine, on its executor's thread.

#ifndef VERBENA_RPC_CLIENT_FENCE_H_
#define VERBENA_RPC_CLIENT_FENCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/session.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

class AttemptFence;
class ClientChannel;

// SentAttempt: an attempt whose request has left, as its server knows it.
struct SentAttempt {
  // Precondition: the link of `session` is open.
  SentAttempt(const ClientSession& session, CallId id);

  uint64_t incarnation;  // the server's
  EarlierAttempt name;
};

// KeptSlot: the slot of an attempt that its call gave up, until the RESPONSE comes or the link is
// lost. The attempt's leases stay in the session's quarantine as long.
//
// Owned by an AttemptFence. Gives the slot back when it is destroyed.
class KeptSlot final : public RegisteredCall {
 public:
  // Takes the slot of `id` over from the call of `method` that has it.
  KeptSlot(AttemptFence& fence, const MethodDescriptor& method, ClientSession& session, CallId id);
  KeptSlot(const KeptSlot&) = delete;
  KeptSlot& operator=(const KeptSlot&) = delete;
  ~KeptSlot();

  // Whether the attempt may still run at the server of that incarnation.
  bool MayRunAt(uint64_t incarnation) const {
    return session_ != nullptr && attempt_.incarnation == incarnation;
  }

 private:
  absl::Status OnResponse(const FrameHeader& frame, const char* body) override;
  absl::Status OnLandingNeeded(const LandingRequest& wanted) override;
  absl::Status OnStreamFrame(const FrameHeader& frame, const char* body) override;
  void OnLinkDown(const absl::Status& reason) override;
  const char* method_name() const override { return method_.full_name; }
  bool is_given_up() const override { return true; }

  AttemptFence& fence_;
  const MethodDescriptor& method_;
  ClientSession* session_;  // null: the RESPONSE has come, or the link is lost
  const CallId id_;
  const SentAttempt attempt_;
};

// AttemptFence: keeps the attempts of an IDEMPOTENT call apart: none begins at a server while an
// earlier one may run, or will begin, in that server's process.
//
// Otherwise a write that hangs could land after its repetition, and after later calls that
// followed the repetition's answer: nothing would tell of that. A server's RESPONSE says that
// nothing of the attempt goes on, so the fence waits for it:
//   - An attempt that passes attempt_timeout sends CANCEL, keeps its slot and its memory, and waits
//     for its RESPONSE, of which an OK is the call's answer. Another server that is ready may have
//     the next attempt at once.
//   - The slot of an attempt that was given up stays taken, and the next attempt that finds the
//     same server waits. attempt_timeout counts from the end of that wait. A RESPONSE for that slot
//     is dropped, also an OK: interceptors have heard that the attempt was given up, and the next
//     one, at another server, must not outlive the call's answer.
//   - An attempt whose link is lost has no RESPONSE. The next one that finds the same server names
//     it, if the link has that feature, and the server ends it first.
// Both wait no longer than the call's deadline. A call that has ended keeps no slot.
//
// Calls need no fence if their methods have no side effects, or if the server itself runs them once
// (dedupe). Only the former are hedged, so a hedge needs none, wherever it runs. Lives in the frame
// of the coroutine that makes the call; on its executor's thread. At most
// RetryPolicy::kMaxAttempts slots and names together, since each attempt sends one request.
class AttemptFence final : private Timer {
 public:
  // Call: the part of a call that a fence needs.
  struct Call {
    ClientChannel* channel;
    const MethodDescriptor& method;
    const CallOptions& options;
    TimePoint deadline;
    bool brings_room;            // response_payload_into
    Duration attempt_timeout{};  // 0: none
  };

  // Whether the attempts of a call of `method` need one.
  static bool IsNeeded(const MethodDescriptor& method) {
    return method.idempotency == Idempotency::kIdempotent && !method.dedupe;
  }

  // `context` is that of the coroutine that makes the attempts. All outlive the fence.
  AttemptFence(const TaskContext& context, const Call& call) : context_(context), call_(call) {}
  AttemptFence(const AttemptFence&) = delete;
  AttemptFence& operator=(const AttemptFence&) = delete;
  ~AttemptFence() override;

  // An attempt begins; `tried` has the servers of the earlier ones. It must run in the scope that
  // this returns, which is null if nobody can cancel it.
  CancelScope* Begin(const TriedServers& tried);
  // The attempt has ended with `status`, and is destroyed. Returns its status as its call sees it.
  absl::Status End(absl::Status status);
  // Whether attempt_timeout had passed when the last attempt had its answer.
  bool timed_out() const { return timed_out_; }

  // --- For the attempt

  // Whether an earlier attempt may still run anywhere.
  bool has_earlier() const { return !kept_.empty() || !lost_.empty(); }
  // Waits until none runs, over a link that is open, at the server that `connection` has a link to.
  // Names those whose links are lost in `context`, which is the attempt's. A failure is the
  // connection's, or says that the call or the attempt is over.
  Task<absl::Status> Await(Connection& connection, CallContext& context);
  // Whether the attempt, after Await(), must not begin over `session`: that leads to a server at
  // which an earlier attempt may run that is not named.
  bool Blocks(const ClientSession& session) const {
    return has_earlier() && (WaitsFor(session) || PlaceOf(session) != place_);
  }
  // When the attempt is cancelled, of which its server hears with the request; kNever for never.
  TimePoint limit() const { return limit_; }
  // The server owes the RESPONSE of `id`, since it has all of the request, or of the landing that
  // it asked for. Until then, and from OnLandingNeeded() on, attempt_timeout ends the attempt.
  void OnSent(ClientSession& session, CallId id) { sent_.emplace(session, id); }
  void OnLandingNeeded() { sent_->is_owed = false; }
  // The RESPONSE has come: attempt_timeout is over.
  void OnAnswered();
  // The link is lost, perhaps under the request.
  void OnLost();
  // The attempt gives up a request that has left: takes over its slot.
  void Keep(ClientSession& session, CallId id);

 private:
  friend class KeptSlot;

  struct Sent {
    Sent(ClientSession& its_session, CallId its_id)
        : session(&its_session), id(its_id), attempt(its_session, its_id) {}

    ClientSession* session;
    CallId id;
    SentAttempt attempt;
    bool is_owed = true;  // the RESPONSE
  };
  // Place: the server to which a request with names goes.
  struct Place {
    uint64_t incarnation = 0;
    bool takes_names = false;

    bool operator==(const Place&) const = default;
  };

  static Place PlaceOf(const ClientSession& session);
  // Names the lost attempts at place_.
  void NameLost(CallContext& context) const;
  // Whether an earlier attempt keeps a slot at the server of `session`.
  bool WaitsFor(const ClientSession& session) const;
  void OnTimer() override;  // attempt_timeout
  void StartTimer();
  // Whether a server that was not tried would take the next attempt now.
  bool IsOtherReady() const;
  // Asks the server to end what the call waits for.
  void CancelSent();

  const TaskContext context_;
  const Call call_;
  const TriedServers* tried_ = nullptr;
  TimePoint limit_ = kNever;
  std::optional<CancelScope> scope_;  // of an attempt that has a limit
  std::optional<Sent> sent_;
  bool waits_ = false;      // in Await()
  bool timed_out_ = false;  // the attempt
  std::vector<std::unique_ptr<KeptSlot>> kept_;
  std::vector<SentAttempt> lost_;
  Place place_;    // that of the last Await()
  Event changed_;  // a slot has become free
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_FENCE_H_
