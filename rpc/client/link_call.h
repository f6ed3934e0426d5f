// LinkCall: a unary call over one link, with all that a call can have: a context, payloads, a
// message that is too large for a frame, a landing that the server asks for.
//
//   state        reached by    may wait for
//   linked       TakeLink
//   shaped       Shape
//   has room     AwaitRoom     memory, leases
//   sent         the await     the response; it returns early if the server asks for a landing
//   landed       GiveLanding   memory, a lease, the response
//   settled      Settled       ends of leases
//
// Settle() is the exit from each of them: it gives the memory back to the call's CallBuffers.
//
// Lives in the frame of the coroutine that makes the call, which may be destroyed at any time. One
// thread.

#ifndef VERBENA_RPC_CLIENT_LINK_CALL_H_
#define VERBENA_RPC_CLIENT_LINK_CALL_H_

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/client/call.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/payload.h"
#include "verbena/rpc/client/plain_call.h"
#include "verbena/rpc/client/session.h"
#include "verbena/rpc/client/spec.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

class Link;

class LinkCall final : public CallInFlight, private PayloadListener {
 public:
  // All outlive the call, which has the context block to itself.
  LinkCall(const CallSpec& spec, CallContext& context, Connection& connection);
  // The rest of `plain`, whose server asks for a landing of `wanted`.
  LinkCall(const CallSpec& spec, PlainCall& plain, const LandingRequest& wanted)
      : CallInFlight(plain), spec_(spec), wanted_(wanted) {}
  ~LinkCall() override { AbandonUnended(); }

  bool has_link() const { return session_ != nullptr; }
  // The link that the connection has had to wait for.
  absl::Status TakeLink(absl::StatusOr<ClientSession*> found) {
    if (found.ok()) session_ = *found;
    return found.status();
  }

  // Measures the request, which may have changed until now, decides what travels in the frame and
  // what one-sided, and takes the caller's memory. RESOURCE_EXHAUSTED if something is too large.
  // Precondition: has_link().
  absl::Status Shape();
  // Whether the call must wait for memory or leases before it can begin.
  bool lacks_room() const { return bulk_.has_value() && LacksRoom(); }
  // Takes the memory, and serializes into it what is too large for a frame. The call may go on over
  // another link of its connection.
  Task<absl::Status> AwaitRoom();

  // Sends the request, and awaits the response. Nothing waits between the last state and the
  // request's frame, or where that waits for room.
  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    return Await(coroutine.promise());
  }
  absl::Status await_resume() { return landing_needed() ? absl::OkStatus() : TakeStatus(); }

  // The link was lost before the request had left.
  bool lost_unsent() const { return lost_unsent_; }
  // Gives the memory back for another beginning of a call that is lost_unsent(). False: it must not
  // begin again, since the lost link may still open the caller's memory for the response.
  bool GiveBack();

  // Sends the landing that is needed, and awaits the response.
  Task<absl::Status> GiveLanding();

  // Whether leases have not ended, though the call has. Settled() waits for them.
  bool settling() const { return bulk_.has_value() && bulk_->settling(); }
  Event::Awaiter Settled() { return bulk_->Settled(); }
  // The status of a call after that wait, which has ended with `waited`.
  absl::Status Waited(absl::Status status, absl::Status waited) const;
  // Whether the response's payload came in the frame, and found no memory.
  bool lacks_memory() const { return bulk_.has_value() && bulk_->lacks_memory(); }
  // Takes that memory, which may be that of another link.
  Task<absl::Status> PlaceResponse();

  // The call has ended with `status`, or has not begun. Returns its final status.
  absl::Status Settle(absl::Status status) {
    return bulk_.has_value() ? SettleBulk(std::move(status)) : std::move(status);
  }

 private:
  bool ContextTravels(const Link& link) const;
  bool MessageTravels(const Link& link) const;
  bool WantsLanding(const Link& link) const;
  bool LacksRoom() const;
  // The bytes of the context and the message in the frame.
  size_t BytesInFrame() const;
  Task<absl::Status> AllocateMemory();
  Task<absl::Status> AwaitLeases(uint32_t leases, bool wait_for_ready);
  absl::Status CheckAfterWait(bool own_landing) const;

  // Begins the call for `caller`, or awaits it again. False: it has ended, and `caller` goes on.
  bool Await(PromiseBase& caller);
  // False when the call ended at once; status_ says how.
  bool Begin();
  // Ends the call before it has begun. Returns false.
  [[gnu::cold, gnu::noinline]] bool Refuse(absl::Status status);
  [[gnu::cold, gnu::noinline]] absl::Status TooLargeForLink() const;
  // A link that has been replaced may lead to a server at which an earlier attempt may run, or that
  // does not know that the block tells a highest number.
  [[gnu::noinline]] absl::Status CheckServer() const;
  // Measures the block, which has what the link takes.
  void MeasureContext();
  void SendRequest();
  FrameHeader RequestHeader() const;
  void WriteRequest(char* body);
  char* WriteContext(char* body) const;
  void SendLanding(const RemoteRange& landing);
  // Bounds the time that the server has from the landing to its response.
  void LimitAnswer();
  [[gnu::cold, gnu::noinline]] void CloseUnanswered();

  absl::Status OnResponse(const FrameHeader& frame, const char* body) override;
  absl::Status OnLandingNeeded(const LandingRequest& wanted) override;
  void OnLinkDown(const absl::Status& reason) override;
  void OnWritable(Link& link) override;
  void OnTimer() override;
  void OnPayloadAhead() override;
  bool LetGo(bool sent) override;
  bool is_given_up() const override { return spec_.fence != nullptr && spec_.fence->timed_out(); }
  // Each returns how many bytes it read at the start of `body`.
  [[gnu::noinline]] absl::StatusOr<size_t> ReadPrefix(const FrameHeader& frame, const char* body);
  absl::StatusOr<size_t> ReadBulk(const char* body, size_t bytes);
  [[gnu::cold, gnu::noinline]] void SetFailure(const FrameHeader& frame, const char* body,
                                               size_t skip);
  // `status` of a call that has run well, but whose answer was lost on its way. Not kExecuted for a
  // deduplicated call: its result is kept, and comes with the next attempt.
  absl::Status AnswerLost(absl::Status status) const;
  absl::Status SettleBulk(absl::Status status);
  // The call has ended well.
  void CountPayloads() const;
  // Reads what the response holds beside the frame.
  absl::Status ReadResponse();

  const CallSpec& spec_;
  Connection* const connection_ = nullptr;  // null: that of a PlainCall, which has begun
  CallContext* const context_ = nullptr;    // null: none
  size_t context_bytes_ = 0;
  size_t message_bytes_ = 0;
  std::optional<ClientBulk> bulk_;  // none: the frame holds the whole request
  bool lost_unsent_ = false;
  bool answer_limited_ = false;           // deadline_ is the server's
  std::optional<LandingRequest> wanted_;  // once only
  RemoteRange landing_{};                 // for the server: sent, or waiting for room
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_LINK_CALL_H_
