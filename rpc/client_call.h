// ClientCall: one unary call in flight, as the await of the coroutine that made it.
//
//   begin    takes a slot, serializes the request straight into a send buffer (or waits for room)
//   end      a response, a deadline, a cancellation or the loss of the link: whichever is first
//
// Lives in the caller's coroutine frame, which may be destroyed at any time: nothing that the NIC
// touches is in it, and its destructor gives the slot back and tells the server. One thread.

#ifndef VERBENA_RPC_CLIENT_CALL_H_
#define VERBENA_RPC_CLIENT_CALL_H_

#include <concepts>
#include <coroutine>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "verbena/rpc/call_options.h"
#include "verbena/rpc/client_link.h"
#include "verbena/rpc/method.h"
#include "verbena/rpc/outcome.h"
#include "verbena/transport/coro/suspension.h"
#include "verbena/transport/link/link.h"

namespace verbena {

class ClientCall final : public Suspension, private SendWaiter, private Timer {
 public:
  // All are borrowed until the call ends. `link` must be usable().
  ClientCall(ClientLink& link, Scheduler& scheduler, const MethodDescriptor& method,
             const google::protobuf::MessageLite& request, google::protobuf::MessageLite& reply,
             const CallOptions& options);
  ~ClientCall() override;

  bool await_ready() const noexcept { return false; }
  template <typename Promise>
    requires std::derived_from<Promise, PromiseBase>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    if (Cancelled(coroutine)) {
      status_ = WithOutcome(cancel_status(), Outcome::kNotSent);
      return false;
    }
    if (!Begin()) return false;
    Suspend(coroutine);
    return true;
  }
  absl::Status await_resume() { return std::move(status_); }

  // From ClientLink, at most one of them, once.
  void OnResponse(const FrameHeader& frame, const char* body);
  void OnLinkDown(const absl::Status& reason);

 private:
  // False when the call ended at once; status_ says how.
  bool Begin();
  bool Fits();
  FrameHeader RequestHeader() const;
  void WriteRequest(char* body);
  void OnWritable(Link& link) override;
  void OnTimer() override;
  void Detach() override;
  // Gives the slot back. The call is over; nobody else has its address any more.
  void End(absl::Status status);
  // The same for a caller that gives up: the server is told, if it may know of the call.
  void GiveUp(absl::StatusCode reason);

  ClientLink& link_;
  Scheduler& scheduler_;
  const MethodDescriptor& method_;
  const google::protobuf::MessageLite& request_;
  google::protobuf::MessageLite& reply_;
  const CallOptions& options_;
  CallId id_;
  bool active_ = false;  // holds a slot
  bool sent_ = false;    // the request was given to the link
  TimePoint started_{};
  absl::Status status_;
};

}  // namespace verbena

#endif  // VERBENA_RPC_CLIENT_CALL_H_
