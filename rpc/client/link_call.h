// LinkCall: a unary call in flight that is more than a frame each way, as the await of the
// coroutine that makes it.
//
// The server may ask for a landing: then the await returns early, landing_needed() is true, and the
// caller sends a landing and awaits the call again (payload.h). A PlainCall whose server asks goes
// on in a LinkCall.

#ifndef VERBENA_RPC_CLIENT_LINK_CALL_H_
#define VERBENA_RPC_CLIENT_LINK_CALL_H_

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
#include "verbena/rpc/client/call.h"
#include "verbena/rpc/client/payload.h"
#include "verbena/rpc/client/plain_call.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/coro/quota.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

class LinkCall final : public CallInFlight, private PayloadListener {
 public:
  using CallInFlight::CallInFlight;
  // The server of `plain` asks for a landing of `wanted`.
  LinkCall(PlainCall& plain, const LandingRequest& wanted) : CallInFlight(plain), wanted_(wanted) {}
  ~LinkCall() override {
    if (active()) [[unlikely]]
      Abandon();
  }

  // The call's one-sided part, which outlives it. Set before the call is awaited, or awaited again.
  void set_bulk(ClientBulk* bulk) {
    VERBENA_DCHECK((bulk_ == nullptr && state_ == State::kNew) || landing_needed())
        << method_.full_name;
    bulk_ = bulk;
  }
  // The call's context block, set before the call is awaited. It is borrowed until the call ends,
  // and must not change. Not set: none. `travels`: the ClientBulk carries the block, and the frame
  // says so.
  void set_context(const CallContext& context, bool travels) {
    VERBENA_DCHECK(state_ == State::kNew) << method_.full_name;
    context_ = &context;
    context_travels_ = travels;
    context_bytes_ = static_cast<uint32_t>(travels ? kContextHeaderBytes : context.encoded_bytes());
  }

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    return Await(coroutine.promise());
  }
  absl::Status await_resume() { return landing_needed() ? absl::OkStatus() : TakeStatus(); }

  // Preconditions of these: landing_needed().
  const LandingRequest& landing_wanted() const { return *wanted_; }
  Link& link() const { return *session_.link(); }
  const std::shared_ptr<Quota>& landing_quota() const { return session_.landing_quota(); }
  // Sends the landing that the server asked for; the call is then awaited again.
  void SendLanding(const RemoteRange& landing);
  // Ends a call that the caller cannot go on with; the next await returns `status`.
  void Fail(absl::Status status) { GiveUp(std::move(status)); }
  // The call has ended since its link was lost before the request had left.
  bool lost_unsent() const { return lost_unsent_; }

 private:
  [[gnu::cold, gnu::noinline]] void Abandon();
  // Begins the call for `caller`, or awaits it again. False: it has ended, and `caller` goes on.
  bool Await(PromiseBase& caller);
  // False when the call ended at once; status_ says how.
  bool Begin();
  // Ends the call before it has begun. Returns false.
  [[gnu::cold, gnu::noinline]] bool Refuse(absl::Status status);
  [[gnu::cold, gnu::noinline]] absl::Status TooLargeForLink() const;
  void SendRequest();
  FrameHeader RequestHeader() const;
  void WriteRequest(char* body);
  void WriteContext(char* body) const;
  absl::Status OnResponse(const FrameHeader& frame, const char* body) override;
  absl::Status OnLandingNeeded(const LandingRequest& wanted) override;
  void OnLinkDown(const absl::Status& reason) override;
  void OnWritable(Link& link) override;
  void OnTimer() override;
  void OnPayloadAhead() override;
  void LetGo(bool sent) override;
  // Bounds the time that the server has from the landing to its response.
  void LimitAnswer();
  [[gnu::cold, gnu::noinline]] void CloseUnanswered();
  // Each returns how many bytes it read at the start of `body`.
  [[gnu::noinline]] absl::StatusOr<size_t> ReadPrefix(const FrameHeader& frame, const char* body);
  absl::StatusOr<size_t> ReadBulk(const char* body, size_t bytes);
  [[gnu::cold, gnu::noinline]] void SetFailure(const FrameHeader& frame, const char* body,
                                               size_t skip);

  ClientBulk* bulk_ = nullptr;
  const CallContext* context_ = nullptr;
  uint32_t context_bytes_ = 0;  // in the frame
  bool context_travels_ = false;
  bool lost_unsent_ = false;
  bool answer_limited_ = false;           // deadline_ is the server's
  std::optional<LandingRequest> wanted_;  // once only
  std::optional<RemoteRange> landing_;    // for the server: sent, or waiting for room
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_LINK_CALL_H_
