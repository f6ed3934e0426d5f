// The part of a ServerCall for requests that have bulk, a context or a stream: reads them, and then
// runs the handler.

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/call_step.h"
#include "verbena/rpc/outcome.h"
#include "verbena/rpc/server/server_call.h"
#include "verbena/rpc/server/server_session.h"
#include "verbena/rpc/server/server_shard.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/coro/deadline.h"

namespace verbena::internal {
namespace {

Task<absl::StatusOr<bool>> ReadRequest(StreamReceiver& receiver,
                                       google::protobuf::MessageLite& request) {
  co_return co_await StreamRead(receiver, request);
}

}  // namespace

void ServerCall::BeginBulk(const RequestBulk& bulk, UsedGrant landing, const char* in_frame) {
  bulk_.Make().Begin(shard_, *session_, id_, deadline_, bulk, std::move(landing), in_frame);
}

void ServerCall::StartWithParts(const FrameHeader& frame, const char* body, IncomingBulk* bulk,
                                IncomingContext* context) {
  size_t request_bytes = frame.body_bytes;
  if (bulk != nullptr) {
    BeginBulk(bulk->request, std::move(bulk->landing), bulk->in_frame);
    body += bulk->request.frame_bytes();
    request_bytes -= bulk->request.frame_bytes();
  }
  if (context != nullptr) {
    carried_.SetIncoming(std::move(context->block));
    if (context->header.travels && bulk != nullptr) {
      bulk_.get()->request().set_context_bytes(context->header.block_bytes);
    }
  }
  messages_.NoteRequest(request_bytes);
  bool in_frame = bulk == nullptr || bulk->request.message_bytes == 0;
  if (frame.flags >= kFrameOpensStream) {
    BeginStream(frame);
    if (context != nullptr && context->header.travels) {
      stream_.get()->ExpectContext(session_->streams(), context->header.block_bytes);
    }
    in_frame = entry_.streams == Streams::kServer && (frame.flags & kFrameMessageApart) == 0;
    // Interceptors see it, and it is that of the call before.
    if (!in_frame) messages_.request().Clear();
  }
  if (in_frame && !messages_.request().ParseFromArray(body, static_cast<int>(request_bytes))) {
    Respond(NotParsed(), Outcome::kNotExecuted);
    return;
  }
  if (bulk != nullptr && bulk->request.has_payload &&
      !entry_.method->descriptor->request_payload()) {
    RespondUnlikeTheMethod();
    return;
  }
  BeginContext();
  if (context != nullptr) SetTrace();
  const bool apart = (frame.flags & kFrameMessageApart) != 0;
  if (shard_.admission() != nullptr) {
    AwaitTurn(apart);
  } else {
    Launch(apart);
  }
}

void ServerCall::RespondUnlikeTheMethod() {
  Respond(absl::InvalidArgumentError(fmt::format(
              "{} takes no payload with its request, and was given one", method_name())),
          Outcome::kNotExecuted);
}

void ServerCall::BeginStream(const FrameHeader& frame) {
  ServedStream& stream = stream_.Make();
  stream.SetMemory(shard_, *session_, deadline_);
  stream.Begin(session_->streams(), id_, *entry_.method->descriptor,
               (frame.flags & kFrameMessageApart) != 0);
}

void ServerCall::Launch(bool apart) {
  if (bulk_.get() != nullptr && bulk_.get()->request().fetches()) {
    step_ = Step::kFetch;
    task_ = FetchAndRun();
    task_.Start(shard_.executor(), &*cancel_, this);
    return;
  }
  if (apart || (stream_.get() != nullptr && stream_.get()->expects_context())) {
    step_ = Step::kFetch;
    task_ = ReadAndRun(apart);
    task_.Start(shard_.executor(), &*cancel_, this);
    return;
  }
  RunHandler();
}

Task<absl::Status> ServerCall::FetchAndRun() {
  FetchedRequest& request = bulk_.get()->request();
  VERBENA_CO_RETURN_IF_ERROR(co_await request.Fetch());
  if (!request.context().empty()) VERBENA_CO_RETURN_IF_ERROR(TakeContext(request.context()));
  if (request.fetches_message()) {
    messages_.NoteRequest(request.message_bytes());
    if (!request.ParseMessage(messages_.request())) co_return NotParsed();
  }
  co_return co_await RunFetched();
}

Task<absl::Status> ServerCall::ReadAndRun(bool request_apart) {
  ServedStream& stream = *stream_.get();
  const TimePoint limit = SaturatingAdd(shard_.executor().now(), kMaxLandingWait);
  if (stream.expects_context()) {
    VERBENA_CO_ASSIGN_OR_RETURN(const std::string block, co_await stream.TakeContext(limit));
    VERBENA_CO_RETURN_IF_ERROR(TakeContext(block));
  }
  if (!request_apart) co_return co_await RunFetched();
  StreamReceiver& receiver = stream.receiver();
  VERBENA_CO_ASSIGN_OR_RETURN(
      const bool read, co_await WithDeadline(ReadRequest(receiver, messages_.request()), limit));
  if (!read)
    co_return absl::InvalidArgumentError("the client ended its messages without a request");
  receiver.End();
  messages_.NoteRequest(messages_.request().ByteSizeLong());
  co_return co_await RunFetched();
}

absl::Status ServerCall::TakeContext(std::string_view block) {
  absl::StatusOr<CallContext> context = ParseContext(block.data(), block.size());
  if (!context.ok()) {
    if (Link* link = session_->link()) link->Close(context.status());
    return context.status();
  }
  if (context->metadata.bytes() > shard_.limits().max_metadata_bytes) {
    return shard_.RefusalStatus(RefusalReason::kTooMuchMetadata);
  }
  if (context->dedupe.has_value() && stream_.get() != nullptr) {
    absl::Status violation = NameOfStream();
    if (Link* link = session_->link()) link->Close(violation);
    return violation;
  }
  carried_.SetIncoming(*std::move(context));
  SetTrace();
  return absl::OkStatus();
}

void ServerCall::SetTrace() {
  const CallContext& context = *carried_.incoming();
  if (context.trace.has_value()) cancel_->set_trace(*context.trace);
}

Task<absl::Status> ServerCall::RunFetched() {
  if (cancel_->requested()) co_return cancel_->status();
  step_ = Step::kHandler;
  AtStep(CallStep::kHandlerStarts, session_->link());
  Task<absl::Status> handler = Invoke();
  if (!handler) co_return NoTask();
  co_return co_await std::move(handler);
}

absl::Status ServerCall::OnStreamFrame(const FrameHeader& frame, const char* body) {
  ServedStream* stream = stream_.get();
  if (stream != nullptr) return stream->OnFrame(frame, body);
  return absl::InvalidArgumentError(
      fmt::format("a frame of a stream for a call of {}, which is not a stream", method_name()));
}

}  // namespace verbena::internal
