// PlainCall: a unary call whose request and reply fit a frame each, and that has nothing else: no
// payload, context, interceptor or policy. Most calls are plain.
//
// A server that asks for memory for a large reply makes it more than a plain call: then a LinkCall
// takes over its slot.

#ifndef VERBENA_RPC_CLIENT_PLAIN_CALL_H_
#define VERBENA_RPC_CLIENT_PLAIN_CALL_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/client/call.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/wire_format.h"

namespace verbena::internal {

class Link;

class PlainCall : public CallInFlight {
 public:
  using CallInFlight::CallInFlight;
  PlainCall(PlainCall&) = delete;
  PlainCall& operator=(const PlainCall&) = delete;

  // Begins the call for `caller`, which goes on when it has ended. False: it has ended already.
  bool Begin(PromiseBase& caller);

 protected:
  // The server asks for a landing of `wanted`. Whoever takes over the caller (TakeCaller) must go
  // on with the call in a LinkCall, and resume the caller in the end.
  virtual void OnLandingWanted(const LandingRequest& wanted) = 0;
  // The call has ended since its link was lost before the request had left: no server has seen it.
  // Resumes the caller, or takes it over.
  virtual void OnLostUnsent() { Resume(); }
  PromiseBase& TakeCaller() { return Suspension::Release(); }

 private:
  // Ends the call before it has begun. Returns false.
  [[gnu::cold, gnu::noinline]] bool Refuse(absl::Status status);
  // Writes the request to its place in a frame.
  void Write(char* body);
  // Returns the length of what precedes the reply in `body`.
  [[gnu::noinline]] absl::StatusOr<size_t> ReadPrefix(const FrameHeader& frame, const char* body);
  absl::Status OnResponse(const FrameHeader& frame, const char* body) override;
  absl::Status OnLandingNeeded(const LandingRequest& wanted) override;
  void OnLinkDown(const absl::Status& reason) override;
  void OnWritable(Link& link) override;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_PLAIN_CALL_H_
