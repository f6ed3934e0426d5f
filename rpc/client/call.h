// CallInFlight: what every unary call has from its request to its end: a slot of its session, a
// deadline, and a caller that waits.
//
//   begin    takes a slot, serializes the request straight into a send buffer (or waits for room)
//   end      a response, a deadline, a cancellation or the loss of the link: whichever is first
//
// A PlainCall (plain_call.h) is one frame each way, a LinkCall (link_call.h) everything else.
//
// Lives in the caller's coroutine frame, which may be destroyed at any time: nothing that the NIC
// touches is in it, and its destructor gives the slot back and tells the server. One thread.

#ifndef VERBENA_RPC_CLIENT_CALL_H_
#define VERBENA_RPC_CLIENT_CALL_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/client/session.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/listener.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

// The error of a call whose borrowed request has changed its size since the call began.
[[gnu::cold]] absl::Status ChangedRequest(const MethodDescriptor& method, size_t before,
                                          size_t now);

// The status that a response carries if it says that its call failed, with what the server says of
// the outcome. `body` is the encoded status. Precondition: the frame's status_code is not 0.
inline absl::Status FailureOf(const FrameHeader& frame, const char* body, size_t body_bytes) {
  const bool known = frame.outcome >= static_cast<uint8_t>(Outcome::kNotExecuted) &&
                     frame.outcome <= static_cast<uint8_t>(Outcome::kMaybeExecuted);
  return WithOutcome(DecodeStatus(frame.status_code, body, body_bytes),
                     known ? static_cast<Outcome>(frame.outcome) : Outcome::kMaybeExecuted);
}

class CallInFlight : public Suspension,
                     protected RegisteredCall,
                     protected SendWaiter,
                     protected Timer {
 public:
  // All are borrowed until the call ends; `info` may be null. `request_bytes` is the length of the
  // request, which ByteSizeLong() has just cached. A derived class may set both this and the
  // session, which must be usable() then, later: until the call begins.
  // The constructor is inline, which spares each call the passing of arguments.
  CallInFlight(ClientSession* session, Scheduler& scheduler, const MethodDescriptor& method,
               const MessageLite& request, MessageLite& reply, TimePoint deadline, CallInfo* info,
               size_t request_bytes)
      : session_(session),
        scheduler_(scheduler),
        method_(method),
        request_(request),
        reply_(reply),
        deadline_(deadline),
        info_(info),
        request_bytes_(static_cast<uint32_t>(request_bytes)) {}
  // How the call ended. Call it once.
  absl::Status TakeStatus() { return std::move(status_); }
  const MethodDescriptor& method() const { return method_; }
  const MessageLite& request() const { return request_; }
  MessageLite& reply() const { return reply_; }
  // kNever if there is none.
  TimePoint deadline() const { return deadline_; }
  CallInfo* info() const { return info_; }
  // The server asks for a landing, and nobody waits for the call until it is answered.
  bool landing_needed() const { return state_ == State::kLandingNeeded; }

 protected:
  enum class State : uint8_t {
    kNew,
    kQueued,         // it has a slot; its request waits for room, or for its payload
    kSent,           // the request was given to the link, and so was a landing if one was given
    kLandingNeeded,  // the caller goes on, since the server asks for a landing
    kEnded,
  };

  // Goes on with `other`, which is landing_needed(): takes its slot and its deadline. For itself,
  // `other` has ended. No copy: its classes delete theirs.
  explicit CallInFlight(CallInFlight& other);
  // A final class calls AbandonUnended() in its destructor. In that of a class between, each call
  // would pay for stores of four vtables.
  ~CallInFlight() override { VERBENA_DCHECK(!active()) << method_.full_name << " is not given up"; }
  void AbandonUnended() {
    if (active()) [[unlikely]]
      Abandon();
  }

  bool active() const { return state_ != State::kNew && state_ != State::kEnded; }
  bool has_deadline() const { return deadline_ != kNever; }

  // The session wants to know how long the call takes.
  [[gnu::cold, gnu::noinline]] void TimeForTally() {
    timed_ = true;
    sent_at_ = scheduler_.now();
  }
  void NoteTime() { session_->tally()->OnTimed(scheduler_.now() - sent_at_); }
  // The caller borrowed the request to the call, and may still reach it while that waits. Its size
  // was cached when the call began: serializing a larger request would write past the frame.
  [[gnu::noinline]] bool RequestChanged() const;
  [[gnu::cold, gnu::noinline]] void FailChanged();

  // Rare paths are out of line to keep the hot path small.
  [[gnu::cold, gnu::noinline]] absl::Status Unasked(const FrameHeader& frame) const;
  // A response says that it has a payload or a large message, for which nothing was leased.
  [[gnu::cold]] static absl::Status BulkForNothing();
  // Reads the bulk header of a response for which nothing was leased. Returns the bytes ahead of
  // the message.
  [[gnu::cold, gnu::noinline]] absl::StatusOr<size_t> ReadUnleased(const char* body, size_t bytes);
  // Takes the payload off a response of a method that has none, and fails the call: its server has
  // another .proto. BulkForNothing() if the payload is neither in the frame nor empty.
  [[gnu::cold, gnu::noinline]] absl::Status DropPayload(ResponseBulk& bulk);
  // Why a call fails whose server wants to send such a payload.
  [[gnu::cold]] absl::Status UnknownPayload() const;
  [[gnu::cold]] static absl::Status LandingOutOfTurn();
  // Reads the trailing metadata of a response. Returns the length of its block.
  absl::StatusOr<size_t> ReadContext(const FrameHeader& frame, const char* body);
  [[gnu::cold, gnu::noinline]] void SetUnparsed(size_t bytes);
  // Why a call does not begin whose caller was cancelled before.
  [[gnu::cold, gnu::noinline]] absl::Status CancelledBefore() const;
  [[gnu::cold]] static absl::Status TooLate();
  // The deadline has passed before the response came: the call's own, or that of its scope. Counts
  // this for the session's tally, if the server owes something. Returns the call's status.
  [[gnu::cold, gnu::noinline]] absl::Status DeadlinePassed();

  // Gives the slot back. The call is over, as status_ says; nobody else has its address any more.
  void End() {
    EndWithoutSlot();
    session_->Release(id_);
  }
  // End(), by something that the caller waits for: resumes the caller.
  void EndAndWake() {
    const bool waits = state_ != State::kLandingNeeded;
    End();
    if (waits) Resume();
  }
  // End() of a caller that gives up: also tells the server, if it may know of the call.
  void GiveUp(absl::Status status);
  // GiveUp(), of which the caller must hear.
  void GiveUpAndWake(absl::Status status);
  // The link is lost: End() with that reason. True if the request had not left.
  bool EndWithLink(const absl::Status& reason);
  [[gnu::cold, gnu::noinline]] void Abandon();
  // A call that is given up lets go of what the server may still use; `sent`: it knows of the call.
  // Returns whether another one has the slot from now on.
  virtual bool LetGo(bool /*sent*/) { return false; }

  const char* method_name() const override { return method_.full_name; }
  absl::Status OnStreamFrame(const FrameHeader& frame, const char* body) override;
  void OnTimer() override;
  void Detach() override;

 private:
  // End() of a call whose slot somebody else has, or gets.
  void EndWithoutSlot() {
    VERBENA_DCHECK(active()) << method_.full_name << " ends twice, or never began";
    state_ = State::kEnded;
    SendWaiter::Unlink();
    if (has_deadline()) scheduler_.StopTimer(*this);
  }

 protected:
  ClientSession* session_;
  Scheduler& scheduler_;
  const MethodDescriptor& method_;
  const MessageLite& request_;
  MessageLite& reply_;
  TimePoint deadline_;
  CallInfo* const info_;
  CallId id_;
  uint32_t request_bytes_;      // in the frame; 0 if the request travels beside it
  uint16_t method_number_ = 0;  // once begun
  State state_ = State::kNew;
  bool timed_ = false;   // for the session's tally
  TimePoint sent_at_{};  // if it is timed_
  absl::Status status_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_CALL_H_
