#include "verbena/rpc/server/call.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "fmt/format.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/bulk_format.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/call/status_codec.h"
#include "verbena/rpc/dedupe.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/server/admission.h"
#include "verbena/rpc/server/dedupe.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/stream/receiver.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/cancel.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/memory/crc32c.h"

namespace verbena::internal {

namespace {

// Equal messages have equal bytes, also if they have maps.
uint32_t FingerprintOf(const MessageLite& message) {
  const std::string bytes = DeterministicBytesOf(message);
  return ExtendCrc32c(0, bytes.data(), bytes.size());
}

std::shared_ptr<const KeptResult> TooLarge(const absl::Status& status, Outcome outcome,
                                           size_t bytes, size_t most) {
  KeptResult kept;
  kept.status = absl::ResourceExhaustedError(
      fmt::format("the call has run and ended with {}, but its result of {} bytes is over this "
                  "server's DedupeOptions::max_result_bytes of {}, so it was not kept",
                  absl::StatusCodeToString(status.code()), bytes, most));
  kept.outcome = outcome;
  return std::make_shared<const KeptResult>(std::move(kept));
}

std::shared_ptr<const KeptResult> NoRoom(const absl::Status& status, Outcome outcome) {
  KeptResult kept;
  kept.status = absl::ResourceExhaustedError(
      fmt::format("the call has run and ended with {}, but its result was not kept: the payloads "
                  "of calls that ran beside it took all of DedupeOptions::max_bytes",
                  absl::StatusCodeToString(status.code())));
  kept.outcome = outcome;
  return std::make_shared<const KeptResult>(std::move(kept));
}

Task<absl::StatusOr<std::optional<DedupeResult>>> AskStore(DedupeStore& store, RequestId id) {
  try {
    co_return co_await store.Lookup(id);
  } catch (...) {
    co_return absl::InternalError("it threw an exception");
  }
}

// The store cannot tell, so the handler does not run.
absl::Status Unknown(const absl::Status& why) {
  absl::Status status =
      Annotate(why, "the service's DedupeStore cannot tell whether the call has run before");
  status.SetPayload(kUnprovenPayloadUrl, absl::Cord());
  return status;
}

Task<absl::StatusOr<bool>> ReadRequest(StreamReceiver& receiver, MessageLite& request) {
  co_return co_await StreamRead(receiver, request);
}

Task<absl::Status> WriteReply(StreamSender& sender, const MessageLite& reply) {
  co_return co_await StreamWrite(sender, reply);
}

// `left`, in microseconds, is what a peer claims.
TimePoint DeadlineIn(uint64_t left, TimePoint now) {
  const auto most = std::chrono::duration_cast<std::chrono::microseconds>(kNever - now);
  if (left >= static_cast<uint64_t>(most.count())) return kNever;
  return now + std::chrono::microseconds(left);
}

}  // namespace

// The part of a ServerCall for servers with interceptors: runs them around the handler.

class ServerCall::Chain final : public InterceptorChain<ServerInterceptor, ServerCallView> {
 public:
  Chain(ServerCall& call, ServerCallView& view)
      : InterceptorChain(call.state_.limits().interceptors, view), call_(call) {}

 private:
  Task<absl::Status> Last() override {
    call_.step_ = Step::kHandler;
    Task<absl::Status> handler = call_.InvokeHandler();
    if (!handler) co_return call_.NoTask();
    co_return co_await std::move(handler);
  }

  ServerCall& call_;
};

Task<absl::Status> ServerCall::RunIntercepted() {
  ServerCallView view(*context_, carried_.incoming_metadata(), messages_.request(),
                      messages_.reply());
  Chain chain(*this, view);
  using Hooks = MessageHooks<ServerInterceptor, ServerCallView>;
  std::optional<Hooks> hooks;
  ServedStream* const stream = stream_.get();
  if (stream != nullptr && Hooks::AreWanted(state_.limits().interceptors)) {
    hooks.emplace(state_.limits().interceptors, view, Streams::kServer, stream->sender(),
                  stream->receiver());
  }
  co_return co_await chain.Run();
}

// The part of a ServerCall for deduplicated calls: the handler runs for the first request with a
// name, and further requests get its result.

bool ServerCall::ExtendFingerprint(uint32_t& fingerprint, size_t& done) const {
  const ServerBulk* bulk = bulk_.get();
  if (bulk == nullptr) return false;
  const BufferView payload = bulk->request().payload();
  if (payload.size() <= done) return false;
  const size_t bytes = std::min(kChecksumSliceBytes, payload.size() - done);
  fingerprint = ExtendCrc32c(fingerprint, payload.data() + done, bytes);
  done += bytes;
  return done < payload.size();
}

// The table's entry of a call while its handler, or a question to the store, runs.
//
// Lives in RunOnce()'s frame. An interceptor owns the Task of next(), and may destroy it: then
// nobody would ever end the entry, and all requests that repeat the call would wait for it.
class ServerCall::RunningName {
 public:
  RunningName(ServerCall& call, RequestId id) : call_(call), id_(id) {}
  RunningName(const RunningName&) = delete;
  RunningName& operator=(const RunningName&) = delete;
  ~RunningName() {
    if (runs_) call_.AbandonNamed(id_);
  }

  void End(const std::shared_ptr<const KeptResult>& result) {
    runs_ = false;
    call_.EndNamed(id_, result);
  }

 private:
  ServerCall& call_;
  const RequestId id_;
  bool runs_ = true;
};

Task<absl::Status> ServerCall::RunOnce() {
  const DedupeName name = *carried_.name();
  uint32_t fingerprint = FingerprintOf(messages_.request());
  size_t done = 0;
  while (ExtendFingerprint(fingerprint, done)) {
    if (const absl::Status status = co_await Yield(); !status.ok()) {
      carried_.once().outcome = Outcome::kNotExecuted;
      co_return UnlessLeft(status);
    }
  }
  const ServerClient& client = call_link_->client();
  DedupeTable& table = *state_.limits().dedupe;
  const DedupeClaim claim = table.Begin({.name = name,
                                         .runtime = client.identity().runtime,
                                         .source = client.identity().source,
                                         .method = entry_.method->descriptor->id,
                                         .fingerprint = fingerprint},
                                        state_.executor());
  using enum DedupeClaim::Verdict;
  switch (claim.verdict) {
    case kRefused:
      carried_.once().outcome = claim.outcome;
      co_return claim.refusal;
    case kKept:
      co_return co_await AnswerWith(*claim.result);
    case kWait:
      carried_.once().outcome = Outcome::kMaybeExecuted;
      VERBENA_CO_RETURN_IF_ERROR(co_await claim.waiter->told().Wait());
      co_return co_await AnswerWith(claim.waiter->result());
    case kRun:
    case kLookUp:
      break;
  }
  RunningName running(*this, name.id);
  carried_.once().outlives_link = true;
  if (claim.verdict == kLookUp) {
    absl::StatusOr<std::optional<DedupeResult>> stored = co_await AskStore(*table.store(), name.id);
    if (!stored.ok() || stored->has_value()) {
      co_return co_await AnswerFromStore(running, std::move(stored));
    }
  }
  co_return co_await RunNamed(running);
}

// A result goes to the table also after the link is lost, since the client may come back for it.
Task<absl::Status> ServerCall::RunNamed(RunningName& running) {
  CarriedContext::Once& once = carried_.once();
  once.trailing_before = carried_.trailing().size();
  absl::Status status;
  Outcome outcome = Outcome::kExecuted;
  try {
    Task<absl::Status> handler =
        entry_.method->invoke(*entry_.service, *context_, messages_.request(), messages_.reply());
    if (handler) {
      status = co_await std::move(handler);
    } else {
      status = NoTask();
    }
  } catch (...) {
    status = Thrown();
    outcome = Outcome::kMaybeExecuted;
  }
  outcome = context_->OutcomeGiven(status).value_or(outcome);
  running.End(ResultOf(status, outcome));
  once.outcome = outcome;
  co_return status;
}

// Whoever waits for the result has it. What is left of the call is for its own caller alone.
void ServerCall::EndNamed(RequestId id, const std::shared_ptr<const KeptResult>& result) {
  state_.limits().dedupe->End(id, result, state_.executor());
  CarriedContext::Once& once = carried_.once();
  once.outlives_link = false;
  // Nobody would answer if the response asked for a landing.
  if (once.given_up) {
    cancel_->Request(absl::StatusCode::kCancelled);
  }
}

void ServerCall::AbandonNamed(RequestId id) {
  CarriedContext::Once& once = carried_.once();
  DedupeTable& table = *state_.limits().dedupe;
  table.ReturnUnfinished(std::exchange(once.written, {}).size());
  KeptResult kept;
  kept.status = absl::AbortedError(
      fmt::format("an interceptor destroyed the handler of {} before it had ended", method_name()));
  kept.outcome = Outcome::kMaybeExecuted;
  // As of a handler that cannot tell.
  kept.is_final = table.store() == nullptr;
  once.outcome = kept.outcome;
  EndNamed(id, std::make_shared<const KeptResult>(std::move(kept)));
}

Task<absl::Status> ServerCall::AnswerFromStore(RunningName& running,
                                               absl::StatusOr<std::optional<DedupeResult>> stored) {
  auto result = std::make_shared<KeptResult>();
  if (stored.ok()) {
    result->reply = std::move((*stored)->reply);
    result->payload = std::move((*stored)->payload);
  } else {
    result->status = Unknown(stored.status());
    result->outcome = Outcome::kMaybeExecuted;
    result->is_final = false;
  }
  running.End(result);
  co_return co_await AnswerWith(*result);
}

std::shared_ptr<const KeptResult> ServerCall::ResultOf(const absl::Status& status,
                                                       Outcome outcome) {
  CarriedContext::Once& once = carried_.once();
  const ServerBulk* bulk = bulk_.get();
  const bool has_payload = bulk != nullptr && bulk->response().has_payload() && status.ok();
  KeptResult kept;
  kept.status = status;
  kept.outcome = outcome;
  DedupeTable& table = *state_.limits().dedupe;
  // A store may know, when the call is repeated, what the handler left open.
  const bool is_open =
      context_->OutcomeGiven(status) == Outcome::kMaybeExecuted && table.store() != nullptr;
  kept.is_final = outcome != Outcome::kNotExecuted && !is_open;
  size_t index = 0;
  for (const auto& [key, value] : carried_.trailing()) {
    if (index++ >= once.trailing_before) kept.trailing.Add(key, value);
  }
  table.ReturnUnfinished(once.written.size());
  const size_t most = table.max_result_bytes();
  size_t bytes = kept.bytes();
  if (status.ok()) bytes += messages_.reply().ByteSizeLong();
  if (has_payload) bytes += once.written_bytes + bulk->response().payload().size();
  if (bytes > most) return TooLarge(status, outcome, bytes, most);
  if (has_payload && once.lacks_room) return NoRoom(status, outcome);
  if (status.ok()) kept.reply = PartialBytesOf(messages_.reply());
  if (has_payload) {
    std::string& payload = kept.payload.emplace(std::move(once.written));
    for (size_t i = 0; i < bulk->response().payload().part_count(); ++i) {
      const BufferView part = bulk->response().payload().part(i);
      if (!part.empty()) payload.append(part.data(), part.size());
    }
  }
  return std::make_shared<const KeptResult>(std::move(kept));
}

Task<absl::Status> ServerCall::AnswerWith(const KeptResult& result) {
  carried_.once().outcome = result.outcome;
  // Metadata that this link's frames do not take is left out.
  for (const auto& [key, value] : result.trailing) {
    (void)context_->AddTrailingMetadata(key, value);
  }
  VERBENA_CO_RETURN_IF_ERROR(result.status);
  if (!messages_.reply().ParsePartialFromString(result.reply)) {
    co_return absl::InternalError(
        fmt::format("the stored result of {} bytes does not parse as {}, the reply of {}",
                    result.reply.size(), TypeNameOf(messages_.reply()), method_name()));
  }
  if (!result.payload.has_value()) co_return absl::OkStatus();
  if (result.payload->empty()) {
    context_->SetResponsePayload(Payload::Empty());
    co_return absl::OkStatus();
  }
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload,
                              co_await context_->AllocateBuffer(result.payload->size()));
  std::memcpy(payload.data(), result.payload->data(), result.payload->size());
  context_->SetResponsePayload(std::move(payload));
  co_return absl::OkStatus();
}

Task<absl::Status> ServerCall::WriteKept(BufferView part) {
  absl::Status written = co_await Bulk().response().Write(part);
  const Link* link = call_link_->link();
  // Whoever repeats the call gets the payload over another link.
  const bool lost = link == nullptr || !link->open();
  if (!lost) VERBENA_CO_RETURN_IF_ERROR(written);
  CarriedContext::Once& once = carried_.once();
  once.written_bytes += part.size();
  DedupeTable& table = *state_.limits().dedupe;
  // Nobody gives back what is taken once the handler has ended.
  const bool may_be_kept =
      once.outlives_link && !once.lacks_room && once.written_bytes <= table.max_result_bytes();
  if (!may_be_kept) co_return absl::OkStatus();
  if (table.TakeUnfinished(part.size())) {
    once.written.append(part.data(), part.size());
  } else {
    once.lacks_room = true;
  }
  co_return absl::OkStatus();
}

// The part of a ServerCall for requests that have bulk, a context or a stream: reads them, and then
// runs the handler.

void ServerCall::BeginBulk(const RequestBulk& bulk, UsedGrant landing, const char* in_frame) {
  bulk_.Make().Begin(state_, *call_link_, id_, deadline_, bulk, std::move(landing), in_frame);
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
      stream_.get()->ExpectContext(call_link_->streams(), context->header.block_bytes);
    }
    in_frame = entry_.streams == Streams::kServer && (frame.flags & kFrameMessageApart) == 0;
    // Interceptors see it, and it is that of the call before.
    if (!in_frame) messages_.request().Clear();
  }
  if (in_frame && !messages_.request().ParseFromArray(body, static_cast<int>(request_bytes))) {
    Respond(NotParsed(), Outcome::kNotExecuted);
    return;
  }
  if (bulk != nullptr) {
    if (const absl::Status taken = CheckBulk(); !taken.ok()) {
      Respond(taken, Outcome::kNotExecuted);
      return;
    }
  }
  BeginContext();
  if (context != nullptr) SetTrace();
  const bool apart = (frame.flags & kFrameMessageApart) != 0;
  if (state_.admission() != nullptr) {
    AwaitTurn(apart);
  } else {
    Launch(apart);
  }
}

absl::Status ServerCall::CheckBulk() const {
  const FetchedRequest& request = bulk_.get()->request();
  if (request.has_payload() && !entry_.method->descriptor->request_payload()) {
    return absl::InvalidArgumentError(
        fmt::format("{} takes no payload with its request, and was given one", method_name()));
  }
  return request.CheckSize();
}

void ServerCall::BeginStream(const FrameHeader& frame) {
  ServedStream& stream = stream_.Make();
  stream.SetMemory(state_, *call_link_, deadline_);
  stream.Begin(call_link_->streams(), id_, *entry_.method->descriptor,
               (frame.flags & kFrameMessageApart) != 0);
}

void ServerCall::Launch(bool apart) {
  const bool fetches = bulk_.get() != nullptr && bulk_.get()->request().fetches();
  const bool reads = apart || (stream_.get() != nullptr && stream_.get()->expects_context());
  if (!fetches && !reads) {
    RunHandler();
    return;
  }
  step_ = Step::kFetch;
  task_ = fetches ? FetchAndRun() : ReadAndRun(apart);
  task_.Start(state_.executor(), &*cancel_, this);
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
  const TimePoint limit = SaturatingAdd(state_.executor().now(), kMaxLandingWait);
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
    if (Link* link = call_link_->link()) link->Close(context.status());
    return context.status();
  }
  if (context->metadata.bytes() > state_.limits().max_metadata_bytes) {
    return state_.RefusalStatus(RefusalReason::kTooMuchMetadata);
  }
  if (context->dedupe.has_value() && stream_.get() != nullptr) {
    absl::Status violation = NameOfStream();
    if (Link* link = call_link_->link()) link->Close(violation);
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

// The part of a ServerCall for responses that are more than one frame with a reply: failures, large
// replies, payloads, trailing metadata and the ends of streams.

void ServerCall::EndTask(const absl::Status& ended, Outcome outcome) {
  outcome = context_->OutcomeGiven(ended).value_or(outcome);
  const bool refused = step_ == Step::kFetch || step_ == Step::kIntercept;
  if (refused) outcome = Outcome::kNotExecuted;
  const absl::Status& status = refused ? UnlessLeft(ended) : ended;
  outcome = carried_.OutcomeOr(outcome);
  if (failure_ != nullptr) {
    RespondLargeFailure(status);
  } else if (status.ok() && step_ != Step::kAskForLanding && step_ != Step::kSendReply) {
    Complete();
  } else if (status.ok() || !AskForFailure(status, outcome)) {
    Respond(status, outcome);
  }
}

// As for a call that waits for its turn: its client may try another server.
const absl::Status& ServerCall::UnlessLeft(const absl::Status& ended) const {
  const bool is_left = pool_.draining() && absl::IsCancelled(ended) &&
                       cancel_->reason() == absl::StatusCode::kCancelled;
  return is_left ? state_.RefusalStatus(RefusalReason::kShuttingDown) : ended;
}

bool ServerCall::AskForFailure(const absl::Status& status, Outcome outcome) {
  const Link* link = call_link_->link();
  if (stream_.get() != nullptr || step_ == Step::kAskForLanding || link == nullptr ||
      !link->open() || cancel_->requested() ||
      StatusFits(status, link->max_body_bytes() - carried_.outgoing_bytes())) {
    return false;
  }
  auto failure = std::make_unique<LargeFailure>(status, outcome, StatusBodyOf(status));
  if (!Bulk().response().PlanFailure(failure->body->ByteSizeLong()).ok()) return false;
  failure_ = std::move(failure);
  step_ = Step::kAskForLanding;
  task_ = bulk_.get()->response().AskForLanding(*failure_->body);
  task_.Start(state_.executor(), &*cancel_, this);
  return true;
}

void ServerCall::RespondLargeFailure(const absl::Status& asked) {
  const std::unique_ptr<LargeFailure> failure = std::move(failure_);
  if (!asked.ok()) {
    Respond(failure->status, failure->outcome);
    return;
  }
  DropFailedReply();
  if (!BeginResponse()) return;
  if (response_.SendFailureInLanding(failure->status.code(), failure->outcome)) Finish();
}

void ServerCall::CompleteWithParts(size_t reply_bytes) {
  const Link* link = call_link_->link();
  const bool large =
      link != nullptr && reply_bytes + carried_.outgoing_bytes() > link->max_body_bytes();
  if (large && stream_.get() != nullptr) {
    step_ = Step::kSendReply;
    task_ = SendReply();
    task_.Start(state_.executor(), &*cancel_, this);
  } else if (bulk_.get() != nullptr || large) {
    CompleteWithBulk(reply_bytes);
  } else {
    Respond(absl::OkStatus(), Outcome::kExecuted);
  }
}

void ServerCall::CompleteWithBulk(size_t reply_bytes) {
  absl::Status planned =
      Bulk().response().Plan(*entry_.method->descriptor, reply_bytes, carried_.outgoing_bytes());
  if (!planned.ok() || !bulk_.get()->response().needs_landing()) {
    Respond(planned, Outcome::kExecuted);
    return;
  }
  step_ = Step::kAskForLanding;
  task_ = bulk_.get()->response().AskForLanding(messages_.reply());
  task_.Start(state_.executor(), &*cancel_, this);
}

// The reply does not fit a frame, so it goes ahead of the response.
Task<absl::Status> ServerCall::SendReply() {
  const TimePoint limit = SaturatingAdd(state_.executor().now(), kMaxLandingWait);
  co_return co_await WithDeadline(WriteReply(stream_.get()->sender(), messages_.reply()), limit);
}

ServerBulk& ServerCall::Bulk() {
  if (bulk_.get() == nullptr) BeginBulk({}, {}, nullptr);
  return *bulk_.get();
}

absl::Status ServerCall::OnLanding(const RemoteRange& landing) {
  ServerBulk* bulk = bulk_.get();
  return bulk != nullptr ? bulk->response().OnLanding(landing) : absl::OkStatus();
}

absl::Status ServerCall::EndStream(const absl::Status& status) {
  if (stream_.get()->OnHandlerEnd() || !status.ok()) return status;
  if (cancel_.has_value() && cancel_->requested()) return cancel_->status();
  return absl::AbortedError(
      fmt::format("the handler of {} returned OK before its last Write had sent its message: "
                  "co_await each Write",
                  method_name()));
}

void ServerCall::Respond(const absl::Status& status, Outcome outcome) {
  if (has_parts()) {
    RespondWithParts(status, outcome);
  } else {
    RespondPlainly(status, outcome);
  }
}

void ServerCall::RespondPlainly(const absl::Status& status, Outcome outcome) {
  if (!status.ok()) DropFailedReply();
  if (!EndHandler()) return;
  response_.Begin(*call_link_, id_, deadline_, nullptr, nullptr);
  const bool sent = status.ok() ? response_.SendReply(messages_.reply_bytes())
                                : response_.SendFailure(status, outcome);
  if (sent) Finish();
}

void ServerCall::RespondWithParts(const absl::Status& handlers, Outcome outcome) {
  const bool is_stream = stream_.get() != nullptr;
  // A client that has given up reads no details.
  const bool is_heard = cancel_.has_value() && !cancel_->requested();
  const absl::Status ended = is_stream ? EndStream(handlers) : absl::OkStatus();
  const absl::Status& status = is_stream ? ended : handlers;
  if (!status.ok()) DropFailedReply();
  if (!BeginResponse()) return;
  const bool in_full = is_stream && is_heard;
  const bool sent = !status.ok() ? (in_full ? response_.SendStreamFailure(status, outcome)
                                            : response_.SendFailure(status, outcome))
                    : step_ == Step::kSendReply ? response_.SendReplyApart()
                                                : response_.SendReply(messages_.reply_bytes());
  if (sent) Finish();
}

bool ServerCall::BeginResponse() {
  carried_.DropIncoming();
  if (!EndHandler()) return false;
  response_.Begin(*call_link_, id_, deadline_, bulk_.get(), carried_.outgoing());
  if (bulk_.get() != nullptr) EndBulkRequest();
  return true;
}

// The handler may have made a large reply before it failed.
void ServerCall::DropFailedReply() {
  messages_.NoteReply(messages_.reply().ByteSizeLong());
  messages_.DropReplyBeyond(CallMessages::kMaxPooledBytes);
}

// The shares that FetchedRequest::Drop() gives back count the request's message, too, so a large
// message is freed with them.
void ServerCall::EndBulkRequest() {
  messages_.DropRequestBeyond(CallMessages::kMaxPooledBytes);
  FetchedRequest& request = bulk_.get()->request();
  request.Drop();
  if (const size_t bytes = request.earned_landing_bytes()) call_link_->OfferLanding(bytes);
}

// The part of a ServerCall for servers with an Admission: the wait for its turn.

void ServerCall::AwaitTurn(bool apart) {
  if (state_.admission()->queues()) {
    step_ = Step::kQueued;
    request_apart_ = apart;
    state_.admission()->Enqueue(*this);
    return;
  }
  state_.NoteStarted();
  Launch(apart);
}

void ServerCall::EndTurn() {
  if (Admission* admission = state_.admission()) admission->EndRun(*this);
}

void ServerCall::RunQueued() {
  VERBENA_DCHECK(step_ == Step::kQueued) << method_name();
  step_ = Step::kHandler;
  if (deadline_ <= state_.executor().now()) {
    EndTurn();
    Respond(CancelStatus(absl::StatusCode::kDeadlineExceeded), Outcome::kNotExecuted);
    return;
  }
  state_.NoteStarted();
  // Streams may last for ever.
  if (stream_.get() != nullptr) EndTurn();
  Launch(request_apart_);
}

void ServerCall::RefuseQueued(RefusalReason reason) {
  VERBENA_CHECK(step_ == Step::kQueued) << method_name();
  step_ = Step::kHandler;
  if (bulk_.get() != nullptr || stream_.get() != nullptr) {
    state_.NoteRefused(reason);
    Respond(state_.RefusalStatus(reason), Outcome::kNotExecuted);
    return;
  }
  // The Status is encoded already.
  CallLink& call_link = *call_link_;
  const CallId id = id_;
  StopTimer();
  context_.reset();
  cancel_.reset();
  state_.CountRefusal(reason);
  Finish();
  call_link.RefuseQueued(id, reason);
}

ServerCall::ServerCall(ServerState& state, CallPool& pool, int method_index)
    : state_(state),
      pool_(pool),
      entry_(state.methods().entry(method_index)),
      messages_(*entry_.method),
      response_(state, entry_.method->descriptor->full_name, messages_, *this) {}

ServerCall::~ServerCall() {
  VERBENA_CHECK(call_link_ == nullptr) << "a call of " << method_name() << " still runs";
  StopTimer();
}

void ServerCall::SetCall(CallLink& call_link, CallId id, const FrameHeader& frame) {
  VERBENA_DCHECK(call_link_ == nullptr && !context_.has_value() && !task_) << method_name();
  VERBENA_DCHECK(step_ == Step::kHandler && !has_parts()) << method_name();
  call_link_ = &call_link;
  id_ = id;
  deadline_ =
      frame.deadline() == 0 ? kNever : DeadlineIn(frame.deadline(), state_.executor().now());
}

void ServerCall::Start(CallLink& call_link, CallId id, const FrameHeader& frame, const char* body,
                       IncomingBulk* bulk, IncomingContext* context) {
  if (frame.flags != 0) {
    SetCall(call_link, id, frame);
    StartWithParts(frame, body, bulk, context);
  } else {
    StartInFrame(call_link, id, frame, body);
  }
}

void ServerCall::StartInFrame(CallLink& call_link, CallId id, const FrameHeader& frame,
                              const char* body) {
  SetCall(call_link, id, frame);
  messages_.NoteRequest(frame.body_bytes);
  if (!messages_.request().ParseFromArray(body, static_cast<int>(frame.body_bytes))) {
    Respond(NotParsed(), Outcome::kNotExecuted);
    return;
  }
  BeginContext();
  if (state_.admission() != nullptr) [[unlikely]] {
    AwaitTurn(false);
    return;
  }
  RunHandler();
}

void ServerCall::BeginContext() {
  cancel_.emplace();
  cancel_->set_client(reinterpret_cast<uintptr_t>(&call_link_->client()));
  context_.emplace(ServerContext(*entry_.method->descriptor, *cancel_, call_link_->peer(), *this));
  if (deadline_ != kNever) StartTimer();
}

// A handler need not be a coroutine, so it may throw before there is a Task to hold what it threw.
void ServerCall::RunHandler() {
  try {
    task_ = Invoke();
  } catch (...) {
    EndTurn();
    Respond(Thrown(), Outcome::kMaybeExecuted);
    return;
  }
  if (!task_) {
    EndTurn();
    Respond(NoTask(), Outcome::kMaybeExecuted);
    return;
  }
  task_.Start(state_.executor(), &*cancel_, this);
}

Task<absl::Status> ServerCall::Invoke() {
  if (state_.limits().interceptors.empty()) [[likely]]
    return InvokeHandler();
  step_ = Step::kIntercept;
  return RunIntercepted();
}

Task<absl::Status> ServerCall::InvokeHandler() {
  if (carried_.name() != nullptr) [[unlikely]]
    return RunOnce();
  return entry_.method->invoke(*entry_.service, *context_, messages_.request(), messages_.reply());
}

absl::Status ServerCall::NotParsed() const {
  return absl::InvalidArgumentError(fmt::format("the request of {} ({} bytes) does not parse as {}",
                                                method_name(), messages_.request_bytes(),
                                                TypeNameOf(messages_.request())));
}

absl::Status ServerCall::NoTask() const {
  return absl::InternalError(
      fmt::format("the handler of {} returned an empty Task: make the handler a coroutine "
                  "(co_return), or return a Task that has not been awaited or moved from",
                  method_name()));
}

// The exception's text goes to the log only: it may hold what the callers must not see.
absl::Status ServerCall::Thrown() const {
  try {
    throw;
  } catch (const std::exception& error) {
    state_.LogThrown(method_name(), error.what());
  } catch (...) {
    state_.LogThrown(method_name(), "something unknown");
  }
  return absl::InternalError(
      fmt::format("the handler of {} threw an exception: see the server's log", method_name()));
}

void ServerCall::OnTaskDone() {
  VERBENA_DCHECK(call_link_ != nullptr && context_.has_value()) << method_name();
  if (state_.admission() != nullptr) [[unlikely]]
    EndTurn();
  absl::Status status;
  Outcome outcome = Outcome::kExecuted;
  try {
    status = task_.TakeResult();
  } catch (...) {
    status = Thrown();
    outcome = Outcome::kMaybeExecuted;
  }
  task_ = {};
  if (status.ok() && step_ == Step::kHandler) [[likely]] {
    Complete();
  } else {
    EndTask(status, outcome);
  }
}

void ServerCall::Complete() {
  const size_t reply_bytes = messages_.reply().ByteSizeLong();
  messages_.NoteReply(reply_bytes);
  const Link* link = call_link_->link();
  if (!has_parts() && (link == nullptr || reply_bytes <= link->max_body_bytes())) [[likely]] {
    ReplyInFrame(reply_bytes);
  } else {
    CompleteWithParts(reply_bytes);
  }
}

void ServerCall::ReplyInFrame(size_t reply_bytes) {
  if (!EndHandler()) return;
  if (response_.SendInFrame(*call_link_, id_, deadline_, reply_bytes)) [[likely]]
    FinishReplied();
}

bool ServerCall::EndHandler() {
  StopTimer();
  context_.reset();
  cancel_.reset();
  const Link* link = call_link_->link();
  if (link != nullptr && link->open()) [[likely]]
    return true;
  Finish();
  return false;
}

void ServerCall::Finish() {
  response_.Clear();
  if (has_parts()) ClearParts();
  step_ = Step::kHandler;
  FinishReplied();
}

void ServerCall::FinishReplied() {
  VERBENA_DCHECK(!context_.has_value() && !cancel_.has_value() && !timer_running_)
      << method_name() << " ends before its handler";
  messages_.Clear();
  CallLink& call_link = *std::exchange(call_link_, nullptr);
  const bool is_guarded = state_.admission() != nullptr && ReleasePlace();
  if (!is_guarded) [[likely]]
    call_link.client().RemoveCall();
  IntrusiveNode<ServerCall>::Unlink();
  call_link.Remove(id_.slot, *this);
  pool_.Recycle(*this);
}

bool ServerCall::ReleasePlace() { return state_.admission()->Release(*this, method_index()); }

void ServerCall::ClearParts() {
  bulk_.Clear();
  carried_.Clear();
  stream_.Clear();
}

void ServerCall::Cancel(absl::StatusCode reason) {
  if (step_ == Step::kQueued) {
    state_.admission()->Leave(*this);
    step_ = Step::kHandler;
    Respond(CancelStatus(reason), Outcome::kNotExecuted);
    return;
  }
  if (cancel_.has_value()) cancel_->Request(reason);
}

void ServerCall::GiveUp(absl::StatusCode reason) {
  // Another request may wait for the call's result.
  if (carried_.outlives_link() && reason == absl::StatusCode::kCancelled) {
    carried_.once().given_up = true;
    return;
  }
  if (cancel_.has_value() && stream_.get() != nullptr) stream_.get()->OnGivenUp(reason);
  Cancel(reason);
}

void ServerCall::StartTimer() {
  context_->deadline_ = Deadline(deadline_);
  cancel_->LimitDeadline(deadline_);
  state_.executor().StartTimer(*this, deadline_);
  timer_running_ = true;
}

void ServerCall::StopTimer() {
  if (std::exchange(timer_running_, false)) state_.executor().StopTimer(*this);
}

void ServerCall::OnTimer() {
  timer_running_ = false;
  GiveUp(absl::StatusCode::kDeadlineExceeded);
}

void ServerCall::OnLinkDown() {
  if (cancel_.has_value()) {
    if (carried_.outlives_link()) return;
    Cancel(absl::StatusCode::kCancelled);
  } else {
    Finish();
  }
}

CallPool::CallPool(ServerState& state)
    : state_(state),
      max_at_once_(state.admission() != nullptr ? 0 : state.limits().max_concurrent_calls),
      kept_(state.methods().size()) {}

CallPool::~CallPool() {
  VERBENA_CHECK(active_ == 0) << active_ << " calls still run";
  for (const auto& calls : kept_) {
    for (ServerCall* call : calls) {
      UnpoisonMemory(call, sizeof(*call));
      delete call;
    }
  }
}

RefusalReason CallPool::Refusal(uint16_t method, Streams streams, const ServerClient& client) {
  if (draining_) return state_.CountRefusal(RefusalReason::kShuttingDown);
  const int index = state_.methods().IndexOf(method);
  if (index < 0) return state_.CountRefusal(RefusalReason::kNoSuchMethod);
  if (state_.methods().entry(index).streams != streams) {
    return state_.CountRefusal(RefusalReason::kStreamsOtherwise);
  }
  // A larger share of an executor that is full would not help.
  if (bounded_calls() >= state_.limits().max_concurrent_calls) {
    return state_.CountRefusal(RefusalReason::kTooManyCalls);
  }
  return state_.CountRefusal(client.takes_its_share() ? RefusalReason::kTooManyOfAClient
                                                      : RefusalReason::kTooManyOfASource);
}

uint32_t CallPool::bounded_calls() const {
  return state_.admission() == nullptr ? active_ : active_ - state_.admission()->control_calls();
}

ServerCall* CallPool::AdmitGuarded(const CallOffer& offer, ServerClient& client,
                                   RefusalReason& reason) {
  const int index = state_.methods().IndexOf(offer.method);
  // A stream may last for ever, so it takes no control place.
  const bool is_stream = offer.streams != Streams::kNone;
  const CallClass its_class = is_stream && offer.priority == Priority::kControl
                                  ? CallClass::kNormal
                                  : state_.admission()->ClassOf(offer.priority, client.queue());
  const bool is_control = its_class == CallClass::kControl;
  const bool full = bounded_calls() >= state_.limits().max_concurrent_calls || client.full();
  if (index < 0 || draining_ || state_.methods().entry(index).streams != offer.streams ||
      (full && !is_control)) {
    reason = Refusal(offer.method, offer.streams, client);
    return nullptr;
  }
  if (const auto broken =
          state_.admission()->Check(index, its_class, offer.pinned_bytes, client.queue())) {
    reason = state_.CountRefusal(*broken);
    return nullptr;
  }
  if (!is_control) client.AddCall();
  ServerCall* call = Take(index);
  state_.admission()->Count(*call, index, its_class, offer.pinned_bytes, client.queue());
  return call;
}

ServerCall* CallPool::Make(int method_index) {
  BoundedVector<ServerCall*>& kept = kept_[method_index];
  if (kept.capacity() < kMaxIdleCalls) kept.Reserve(kept.capacity() + 1);
  return new ServerCall(state_, *this, method_index);
}

Task<absl::Status> CallPool::WaitUntilIdle() {
  if (active_ == 0) co_return absl::OkStatus();
  co_return co_await idle_.Wait();
}

size_t CallPool::idle_calls() const {
  size_t count = 0;
  for (const auto& calls : kept_) count += calls.size();
  return count;
}

}  // namespace verbena::internal
