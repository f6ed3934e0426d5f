// Streams at the server: ServedStream, and RequestBuffers for payloads of its messages.
//
// Part of a ServerCall, on its executor's thread. The stream's windows, and the client's and the
// source's bounds, hold for its memory.

#ifndef VERBENA_RPC_SERVER_SERVED_STREAM_H_
#define VERBENA_RPC_SERVER_SERVED_STREAM_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/server/call_link.h"
#include "verbena/rpc/server/state.h"
#include "verbena/rpc/stream/beside.h"
#include "verbena/rpc/stream/receiver.h"
#include "verbena/rpc/stream/sender.h"
#include "verbena/rpc/stream/windows.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

// RequestBuffers: memory for the payloads of a stream's messages at its server.
//
// Receive memory, within what the client and its source may have for payloads of requests
// (ServerOptions::max_bytes_per_client and max_bytes_per_source). A payload counts until its memory
// is free, also while the handler keeps it. Part of a ServedStream, on its executor's thread.
class RequestBuffers final : public StreamBuffers {
 public:
  // A stream begins. Both are used while its handler runs; `deadline` is the call's.
  void Begin(ServerState& state, CallLink& call_link, TimePoint deadline) {
    state_ = &state;
    call_link_ = &call_link;
    deadline_ = deadline;
  }

  // UNAVAILABLE once the link is lost.
  absl::StatusOr<Buffer> TryAllocate(size_t bytes) override;
  Task<absl::StatusOr<Buffer>> Allocate(size_t bytes) override;

 private:
  ServerState* state_ = nullptr;
  CallLink* call_link_ = nullptr;
  TimePoint deadline_ = kNever;
};

// ServedStream: the server's end of a stream, which is a part of its ServerCall.
//
// Made when a call first is a stream, and kept for later calls. On its executor's thread.
class ServedStream final : private StreamReceiver::Listener {
 public:
  StreamReceiver& receiver() { return receiver_; }
  StreamSender& sender() { return sender_; }

  // `deadline` is the call's. `request_apart`: the request comes as a message.
  void Begin(ServerState& state, CallLink& call_link, CallId id, TimePoint deadline,
             const MethodDescriptor& method, bool request_apart) {
    buffers_.Begin(state, call_link, deadline);
    StreamLink& link = call_link.streams();
    receiver_.Begin(link, id,
                    method.messages_have_payloads(Streams::kClient) ? &buffers_ : nullptr);
    sender_.Begin(link, id, method.full_name);
    request_apart_ = request_apart;
    if (method.streams == Streams::kServer && !request_apart) receiver_.End();
  }
  void Clear() {
    receiver_.Clear();
    sender_.Clear();
    context_.reset();
    context_arrived_.Reset();
  }

  // The client's context block of `bytes` comes beside the messages; after Begin().
  void ExpectContext(StreamLink& link, size_t bytes) {
    context_ = std::make_unique<BesideReceiver>(link.share(), bytes);
    context_link_ = &link;
  }
  bool expects_context() const { return context_ != nullptr; }
  bool request_apart() const { return request_apart_; }
  // Waits for the context block. RESOURCE_EXHAUSTED if memory is short, DEADLINE_EXCEEDED at
  // `limit`.
  Task<absl::StatusOr<std::string>> TakeContext(TimePoint limit) {
    {
      // The link outlives its calls' Tasks.
      context_link_->BeginWait();
      absl::Cleanup end_wait = [link = context_link_] { link->EndWait(); };
      VERBENA_CO_RETURN_IF_ERROR(co_await WithDeadline(WaitFor(context_arrived_), limit));
    }
    VERBENA_CO_RETURN_IF_ERROR(context_->kept());
    std::string block = context_->bytes();
    // Nothing more may come.
    context_.reset();
    co_return block;
  }

  // From the call_link. A failed Status closes the link.
  absl::Status OnFrame(const FrameHeader& frame, const char* body) {
    if (frame.kind == FrameKind::kStreamWindow) return sender_.OnWindow(frame);
    if (frame.kind == FrameKind::kStreamMessage) {
      if (frame.outcome == kBesideMessages) [[unlikely]]
        return OnBeside(frame, body);
      return receiver_.OnMessage(frame, body);
    }
    if (frame.body_bytes != 0 || receiver_.ended() || !receiver_.End()) {
      return absl::InvalidArgumentError(
          "the end of a stream's messages has a body, comes twice, or within a message");
    }
    return absl::OkStatus();
  }

  // The caller has given up: also a Read or Write that no cancellation reaches ends, and all later
  // ones fail.
  void OnGivenUp(absl::StatusCode reason) {
    receiver_.Fail(CancelStatus(reason));
    sender_.Close(CancelStatus(reason));
  }
  // The handler has ended: what was not read is dropped, and nothing more is sent. False if the
  // parts of a message have not all left.
  bool OnHandlerEnd() {
    const bool is_whole = !sender_.in_message() && !sender_.cut_short();
    receiver_.Discard();
    sender_.Close(absl::CancelledError("the handler has ended"));
    return is_whole;
  }

 private:
  // The Read that waits for the message tells the handler.
  void OnReceiveFailed(const absl::Status&) override {}
  absl::Status OnBeside(const FrameHeader& frame, const char* body) {
    if (context_ == nullptr) {
      return absl::InvalidArgumentError(
          "bytes beside the messages of a stream whose request told of none");
    }
    VERBENA_RETURN_IF_ERROR(context_->Add(frame, body));
    if (context_->complete()) context_arrived_.Set();
    return absl::OkStatus();
  }

  RequestBuffers buffers_;
  StreamReceiver receiver_{*this};
  StreamSender sender_;
  bool request_apart_ = false;
  std::unique_ptr<BesideReceiver> context_;  // null: it was in the frame, or there is none
  StreamLink* context_link_ = nullptr;       // of the last context
  Event context_arrived_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_SERVED_STREAM_H_
