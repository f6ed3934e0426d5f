// ClientCall: one unary call in flight, as the await of the coroutine that made it.
//
//   begin    takes a slot, serializes the request straight into a send buffer (or waits for room)
//   end      a response, a deadline, a cancellation or the loss of the link: whichever is first
//
// Between them the server may ask for a landing: then the await returns early, landing_needed() is
// true, and the caller sends a landing and awaits the call again (payload.h).
//
// Lives in the caller's coroutine frame, which may be destroyed at any time: nothing that the NIC
// touches is in it, and its destructor gives the slot back and tells the server. One thread.

#ifndef VERBENA_RPC_CLIENT_CALL_H_
#define VERBENA_RPC_CLIENT_CALL_H_

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/context_block.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/client/payload.h"
#include "verbena/rpc/client/session.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

// The error of a call whose borrowed request has changed its size since the call began.
[[gnu::cold]] absl::Status ChangedRequest(const MethodDescriptor& method, size_t before,
                                          size_t now);

class ClientCall : public Suspension,
                   private RegisteredCall,
                   private SendWaiter,
                   private Timer,
                   private PayloadListener {
 public:
  // All are borrowed until the call ends; `info` may be null. `session` must be usable().
  // `request_bytes` is the length of the request in the frame, which ByteSizeLong() has just
  // cached; 0 if a ClientBulk carries the request.
  // The constructor and the destructor are inline, which spares each call the passing of arguments.
  ClientCall(ClientSession& session, Scheduler& scheduler, const MethodDescriptor& method,
             const MessageLite& request, MessageLite& reply, Deadline deadline, CallInfo* info,
             size_t request_bytes)
      : session_(session),
        scheduler_(scheduler),
        method_(method),
        request_(request),
        reply_(reply),
        deadline_(deadline),
        info_(info),
        request_bytes_(request_bytes) {}
  ~ClientCall() override {
    if (active_) [[unlikely]]
      AbandonUnended();
  }

  // The call's one-sided part, set before the call is awaited, or awaited again. If `bulk` does not
  // outlive the call, its owner calls LeaveBulk(), which gives up a call that has not ended.
  void set_bulk(ClientBulk* bulk) {
    VERBENA_DCHECK((bulk_ == nullptr && stage_ == Stage::kNew) || landing_needed())
        << method_.full_name;
    bulk_ = bulk;
  }
  // The call's context block, set before the call is awaited. It is borrowed until the call ends,
  // and must not change. Not set: none. `travels`: the ClientBulk carries the block, and the frame
  // says so.
  void set_context(const CallContext& context, bool travels) {
    VERBENA_DCHECK(stage_ == Stage::kNew) << method_.full_name;
    context_ = &context;
    context_travels_ = travels;
    context_bytes_ = static_cast<uint32_t>(travels ? kContextHeaderBytes : context.encoded_bytes());
  }
  void LeaveBulk();

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    return Await(coroutine.promise());
  }
  // Begins the call for `caller`, or awaits it again. False: it has ended, and `caller` goes on.
  bool Await(PromiseBase& caller);
  // Await() of a call that has not begun, whose frame holds its request and no more: the path of
  // most calls, kept short.
  bool AwaitInFrame(PromiseBase& caller);
  absl::Status await_resume() { return std::move(status_); }

  // The server waits for a landing from this client; the call has not ended.
  bool landing_needed() const { return active_ && stage_ == Stage::kLandingNeeded; }
  const LandingRequest& landing_wanted() const { return *landing_wanted_; }
  // Sends the landing that the server asked for; the call is then awaited again. Precondition:
  // landing_needed().
  void SendLanding(const RemoteRange& landing);
  // Ends a call that the caller cannot go on with; the next await returns `status`.
  void Fail(absl::Status status) { GiveUp(std::move(status)); }
  // The call has ended since its link was lost before the request had left.
  bool lost_unsent() const { return lost_unsent_; }
  const MethodDescriptor& method() const { return method_; }
  const MessageLite& request() const { return request_; }
  MessageLite& reply() const { return reply_; }
  Deadline deadline() const { return deadline_; }
  CallInfo* info() const { return info_; }
  // Precondition of these two: landing_needed().
  Link& link() const { return *session_.link(); }
  const std::shared_ptr<Quota>& landing_quota() const { return session_.landing_quota(); }

 protected:
  // The server wants a landing: the await returns early.
  virtual void OnLandingWanted() { Wake(); }
  // The call has ended, and is lost_unsent(), while its caller waits: resumes the caller, or takes
  // it over.
  virtual void OnLostUnsent() { Wake(); }
  // The caller takes over: it must resume the coroutine that awaits the call.
  PromiseBase& TakeCaller() {
    suspended_ = false;
    return Release();
  }

 private:
  enum class Stage : uint8_t { kNew, kSent, kLandingNeeded, kEnded };

  [[gnu::cold, gnu::noinline]] void AbandonUnended();
  // False when the call ended at once; status_ says how.
  bool Begin();
  void SendRequest();
  FrameHeader RequestHeader() const;
  void SetDeadlineOf(FrameHeader& request) const;
  // Begin() or AwaitInFrame(), if the session's tally wants to know how long the call takes.
  [[gnu::cold, gnu::noinline]] void TimeForTally();
  void WriteRequest(char* body);
  [[gnu::noinline]] void WriteContext(char* body) const;
  absl::Status OnResponse(const FrameHeader& frame, const char* body) override;
  absl::Status OnLandingNeeded(const LandingRequest& wanted) override;
  absl::Status OnStreamFrame(const FrameHeader& frame, const char* body) override;
  void OnLinkDown(const absl::Status& reason) override;
  void OnWritable(Link& link) override;
  void OnTimer() override;
  void OnPayloadAhead() override;
  // Bounds the time that the server has from the landing to its response.
  void LimitAnswer();
  [[gnu::cold, gnu::noinline]] void CloseUnanswered();
  void Detach() override;
  void Wake();
  // Rare paths are out of line to keep the hot path small.
  [[gnu::noinline]] bool RequestChanged() const;
  [[gnu::cold, gnu::noinline]] void FailChanged();
  [[gnu::cold, gnu::noinline]] absl::Status Unasked(const FrameHeader& frame) const;
  // The deadline has passed before the response came: the call's own, or that of its scope. Counts
  // this for the session's tally, if the server owes something. Returns the call's status.
  [[gnu::cold, gnu::noinline]] absl::Status DeadlinePassed();
  // The reason why the call does not begin.
  [[gnu::cold, gnu::noinline]] absl::Status Refusal() const;
  // Ends the call before it has begun.
  [[gnu::cold, gnu::noinline]] void Refuse(absl::Status status);
  // Each returns how many bytes it read at the start of `body`.
  [[gnu::noinline]] absl::StatusOr<size_t> ReadPrefix(const FrameHeader& frame, const char* body);
  absl::StatusOr<size_t> ReadContext(const FrameHeader& frame, const char* body);
  absl::StatusOr<size_t> ReadBulk(const char* body, size_t bytes);
  [[gnu::cold, gnu::noinline]] void SetFailure(const FrameHeader& frame, const char* body,
                                               size_t skip);
  [[gnu::cold, gnu::noinline]] void SetUnparsed(size_t bytes);
  // Fills in the caller's CallInfo, however the call ended.
  void FillInfo();
  // Gives the slot back. The call is over, as status_ says; nobody else has its address any more.
  void End();
  // End() for a caller that gives up: also tells the server, if it may know of the call.
  void GiveUp(absl::Status status);

  ClientSession& session_;
  Scheduler& scheduler_;
  const MethodDescriptor& method_;
  const MessageLite& request_;
  MessageLite& reply_;
  Deadline deadline_;  // the caller's; after SendLanding() it may be the server's time limit
  CallInfo* const info_;
  ClientBulk* bulk_ = nullptr;
  const CallContext* context_ = nullptr;
  uint32_t context_bytes_ = 0;  // in the frame
  bool context_travels_ = false;
  bool lost_unsent_ = false;
  CallId id_;
  size_t request_bytes_;
  uint16_t method_number_ = 0;  // since Begin()
  Stage stage_ = Stage::kNew;
  bool suspended_ = false;
  bool active_ = false;                           // holds a slot
  bool sent_ = false;                             // the request was given to the link
  bool answer_limited_ = false;                   // deadline_ is the server's
  bool timed_ = false;                            // for the session's tally
  std::optional<LandingRequest> landing_wanted_;  // once only
  std::optional<RemoteRange> landing_;            // for the server: sent, or waiting for room
  TimePoint started_{};
  absl::Status status_;
};

// The Status of a response that says that its call failed, with what the server says of its
// outcome.

// `body` is the encoded status. Precondition: the frame's status_code is not 0.
inline absl::Status FailureOf(const FrameHeader& frame, const char* body, size_t body_bytes) {
  const bool known = frame.outcome >= static_cast<uint8_t>(Outcome::kNotExecuted) &&
                     frame.outcome <= static_cast<uint8_t>(Outcome::kMaybeExecuted);
  return WithOutcome(DecodeStatus(frame.status_code, body, body_bytes),
                     known ? static_cast<Outcome>(frame.outcome) : Outcome::kMaybeExecuted);
}

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_CALL_H_
