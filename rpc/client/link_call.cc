#include "verbena/rpc/client/link_call.h"

#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/rpc/call/sizes.h"
#include "verbena/rpc/client/landings.h"
#include "verbena/rpc/detail/message.h"
#include "verbena/rpc/shard/call_counts.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/one_sided_awaits.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

namespace {

// Whether this client takes a response that needs memory of `wanted`.
absl::Status CheckWanted(const LandingRequest& wanted, const LinkLimits& limits) {
  VERBENA_RETURN_IF_ERROR(
      CheckPayloadSize("a response's payload", wanted.payload_bytes, "client", limits));
  VERBENA_RETURN_IF_ERROR(CheckMessageSize("a reply", wanted.message_bytes, "client", limits));
  return CheckTogether("a reply", wanted.message_bytes, wanted.payload_bytes);
}

Task<absl::Status> FreeLeases(Link& link, uint32_t count) {
  co_return co_await LeaseAwaiter(link, count);
}

}  // namespace

LinkCall::LinkCall(const CallSpec& spec, CallContext& context, Connection& connection)
    : CallInFlight(connection.usable_session(), connection.shard().executor(), spec.method,
                   spec.request, spec.reply, spec.deadline, spec.info, 0),
      spec_(spec),
      connection_(&connection),
      context_(context.empty() ? nullptr : &context) {}

// --- Before the request

bool LinkCall::ContextTravels(const Link& link) const {
  return context_bytes_ > kMaxContextInFrame ||
         context_bytes_ + kMaxRequestBulkBytes > link.max_body_bytes();
}

bool LinkCall::MessageTravels(const Link& link) const {
  return ContextTravels(link) ||
         context_bytes_ + message_bytes_ + kMaxRequestBulkBytes > link.max_body_bytes();
}

bool LinkCall::WantsLanding(const Link& link) const {
  return bulk_->response_room > 0 && !bulk_->RoomInFrame(link);
}

bool LinkCall::LacksRoom() const {
  const Link& link = *session_->link();
  return MessageTravels(link) || WantsLanding(link) ||
         link.free_leases() < bulk_->leases_needed(session_);
}

size_t LinkCall::BytesInFrame() const {
  return (bulk_->message ? 0 : message_bytes_) +
         (bulk_->context_bytes > 0 ? kContextHeaderBytes : context_bytes_);
}

void LinkCall::MeasureContext() {
  if (context_->dedupe.has_value()) {
    context_->tells_highest = session_->link()->tells_highest_number();
    // A block that travels leaves before its request: it tells that the number is not known.
    context_->dedupe->highest = 0;
  }
  context_bytes_ = context_->encoded_bytes();
}

absl::Status LinkCall::Shape() {
  if (context_ != nullptr) MeasureContext();
  message_bytes_ = request_.ByteSizeLong();
  if (info_ != nullptr) info_->request_bytes = static_cast<uint32_t>(message_bytes_);
  const CallOptions& options = spec_.options;
  if (!HasPayloads(method_, options) && context_bytes_ <= kMaxContextInFrame &&
      context_bytes_ + message_bytes_ <= session_->link()->max_body_bytes()) {
    return absl::OkStatus();
  }
  ClientBulk& bulk = bulk_.emplace();
  bulk.payload = spec_.buffers.TakePayload();
  bulk.landing = spec_.buffers.TakeRoom();
  if (!bulk.landing) bulk.response_room = options.max_response_payload;
  bulk.frame_message_bytes = BytesInFrame();
  const LinkLimits& limits = session_->link()->endpoint().limits();
  VERBENA_RETURN_IF_ERROR(
      CheckPayloadSize("a request payload", bulk.payload.size(), "client", limits));
  VERBENA_RETURN_IF_ERROR(CheckMessageSize("a request", message_bytes_, "client", limits));
  return CheckPayloadSize("a response payload (max_response_payload)", options.max_response_payload,
                          "client", limits);
}

// Memory for what the request brings besides the caller's own, on the device of session_, which may
// be gone when this ends.
Task<absl::Status> LinkCall::AllocateMemory() {
  const Link& link = *session_->link();
  const Endpoint& endpoint = link.endpoint();
  [[maybe_unused]] const auto use = endpoint.Use();
  const bool wants_landing = WantsLanding(link);
  if (MessageTravels(link)) {
    bulk_->context_bytes = ContextTravels(link) ? context_bytes_ : 0;
    VERBENA_CO_ASSIGN_OR_RETURN(
        bulk_->message,
        co_await AllocateUntil(endpoint, endpoint.memory().send(),
                               bulk_->context_bytes + message_bytes_, {.deadline = deadline_}));
    // The request may have changed while this waited, and its memory has the former size.
    if (const size_t now = request_.ByteSizeLong(); now != message_bytes_) {
      co_return ChangedRequest(method_, message_bytes_, now);
    }
    char* const message = bulk_->message.data();
    if (bulk_->context_bytes > 0) context_->Encode(message);
    request_.SerializeWithCachedSizesToArray(
        reinterpret_cast<uint8_t*>(message + bulk_->context_bytes));
  }
  if (wants_landing) {
    VERBENA_CO_ASSIGN_OR_RETURN(
        bulk_->landing,
        co_await AllocateUntil(endpoint, endpoint.memory().landing(),
                               spec_.options.max_response_payload, {.deadline = deadline_}));
  }
  co_return absl::OkStatus();
}

// Waits until the link can open `leases` leases this very moment. A lost link is replaced, so the
// caller's wait_for_ready holds here, too.
Task<absl::Status> LinkCall::AwaitLeases(uint32_t leases, bool wait_for_ready) {
  for (;;) {
    session_ = connection_->usable_session();
    absl::Status status;
    if (session_ == nullptr) {
      status = (co_await connection_->Session(spec_.deadline, wait_for_ready)).status();
    } else if (session_->link()->free_leases() >= leases) {
      co_return absl::OkStatus();
    } else {
      status = co_await WithDeadline(FreeLeases(*session_->link(), leases), spec_.deadline);
      if (absl::IsUnavailable(status)) status = absl::OkStatus();
    }
    VERBENA_CO_RETURN_IF_ERROR(status);
  }
}

Task<absl::Status> LinkCall::AwaitRoom() {
  const bool own_landing = !bulk_->landing;
  VERBENA_CO_RETURN_IF_ERROR(co_await AllocateMemory());
  bulk_->frame_message_bytes = BytesInFrame();
  session_ = connection_->usable_session();
  if (session_ == nullptr || session_->link()->free_leases() < bulk_->leases_needed(session_)) {
    VERBENA_CO_RETURN_IF_ERROR(
        co_await AwaitLeases(bulk_->leases_needed(nullptr), spec_.options.wait_for_ready));
  }
  co_return CheckAfterWait(own_landing);
}

// Whether the call can still begin after it has waited: its request must be as it was, and the link
// must take the memory that the call itself allocated before, which the next attempt allocates
// anew. The caller must replace its own buffers itself.
absl::Status LinkCall::CheckAfterWait(bool own_landing) const {
  if (const size_t now = request_.ByteSizeLong(); now != message_bytes_) {
    return ChangedRequest(method_, message_bytes_, now);
  }
  for (const Buffer* taken : {&bulk_->message, own_landing ? &bulk_->landing : nullptr}) {
    if (taken == nullptr || taken->size() == 0) continue;
    const MemoryRegion& region = taken->view().region();
    if (region.pd() == session_->link()->endpoint().pd()) continue;
    return absl::UnavailableError(
        fmt::format("{} failed, or was removed, while {} waited with memory of it; try again",
                    region.device_name(), method_.full_name));
  }
  return absl::OkStatus();
}

bool LinkCall::GiveBack() {
  if (!bulk_.has_value()) return true;
  const bool gave_room = spec_.buffers.gave_room();
  if (gave_room && bulk_->landing_lost()) return false;
  spec_.buffers.GiveBack(std::move(bulk_->payload), bulk_->lost());
  spec_.buffers.TakeBack();
  // Otherwise it is memory of the device that the link was on.
  if (gave_room) spec_.buffers.GiveBackRoom(std::move(bulk_->landing));
  // The call's own memory is free while another connection is waited for.
  bulk_.reset();
  return true;
}

// --- The request

bool LinkCall::Await(PromiseBase& caller) {
  if (Cancelled(caller)) {
    if (state_ == State::kNew) return Refuse(CancelledBefore());
    if (active()) GiveUp(cancel_status());
    return false;
  }
  if (state_ == State::kNew && !Begin()) return false;
  // Something may have happened while nobody awaited it.
  if (state_ == State::kEnded) return false;
  Suspend(caller);
  return true;
}

bool LinkCall::Begin() {
  VERBENA_CHECK(session_->link() != nullptr) << method_.full_name;
  const bool is_beside = bulk_.has_value() && bulk_->message;
  request_bytes_ = is_beside ? 0 : static_cast<uint32_t>(message_bytes_);
  body_bytes = message_bytes_ + context_bytes_;
  if (bulk_.has_value()) {
    if (absl::Status opened = bulk_->OpenLeases(*session_); !opened.ok()) {
      return Refuse(std::move(opened));
    }
    body_bytes = BytesInFrame() + bulk_->frame_bytes();
  }
  // Reading the clock costs as much as posting a WR: only calls that need times pay.
  if (has_deadline() && deadline_ <= scheduler_.now()) return Refuse(TooLate());
  // The link may have been replaced since the request was measured, and the new one may have
  // smaller frames.
  if (body_bytes > session_->link()->max_body_bytes()) return Refuse(TooLargeForLink());
  if (spec_.fence != nullptr || (context_ != nullptr && context_->tells_highest)) [[unlikely]] {
    if (absl::Status fit = CheckServer(); !fit.ok()) return Refuse(std::move(fit));
  }
  method_number_ = session_->NumberOf(method_);
  if (method_number_ == 0) return Refuse(session_->NoSuchMethod(method_));
  if (!session_->Register(*this, &id_)) return Refuse(ClientSession::TooManyCalls());
  state_ = State::kQueued;
  if (session_->times_call()) [[unlikely]]
    TimeForTally();
  if (!bulk_.has_value() || !bulk_->StartWrite(*session_, *this)) SendRequest();
  if (has_deadline()) scheduler_.StartTimer(*this, deadline_);
  return true;
}

absl::Status LinkCall::TooLargeForLink() const {
  return absl::UnavailableError(
      fmt::format("the request to {} takes {} bytes, but a frame of this link {}: the link "
                  "changed while the call began; try again",
                  method_.full_name, body_bytes, session_->link()->max_body_bytes()));
}

absl::Status LinkCall::CheckServer() const {
  if (spec_.fence != nullptr && spec_.fence->Blocks(*session_)) {
    return absl::UnavailableError(fmt::format(
        "the link changed while an attempt of {} began, and leads to a server at which an "
        "earlier one still runs; try again",
        method_.full_name));
  }
  const bool tells_highest = context_ != nullptr && context_->tells_highest;
  if (tells_highest && !session_->link()->tells_highest_number()) {
    return absl::UnavailableError(
        fmt::format("the link changed while {} began, and leads to a server of an earlier version, "
                    "which does not know all that the request has; try again",
                    method_.full_name));
  }
  return absl::OkStatus();
}

bool LinkCall::Refuse(absl::Status status) {
  if (bulk_.has_value()) (void)bulk_->Abandon(*session_, /*sent=*/false);
  state_ = State::kEnded;
  status_ = WithOutcome(std::move(status), Outcome::kNotExecuted);
  return false;
}

void LinkCall::SendRequest() {
  Link& link = *session_->link();
  if (bulk_.has_value()) invalidated = bulk_->RequestKey(link);
  if (char* body = link.Append(RequestHeader(), body_bytes, invalidated)) {
    WriteRequest(body);
  } else {
    link.AwaitWritable(*this);
  }
}

FrameHeader LinkCall::RequestHeader() const {
  FrameHeader frame = RequestFrame(id_, method_number_);
  if (bulk_.has_value()) frame.flags = kFrameHasBulk;
  if (context_ != nullptr) frame.flags |= kFrameHasContext;
  const TimePoint limit = LimitOf(spec_);
  if (limit != kNever) frame.set_deadline(RemainingUs(limit, scheduler_.now()));
  return frame;
}

void LinkCall::WriteRequest(char* body) {
  VERBENA_DCHECK(state_ == State::kQueued) << method_.full_name << " is sent twice, or has ended";
  if (context_ != nullptr) body = WriteContext(body);
  if (bulk_.has_value()) {
    body = bulk_->WriteTo(body);
    bulk_->OnRequestAppended(*session_);
  }
  if (request_bytes_ > 0) {
    request_.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(body));
  }
  state_ = State::kSent;
  if (spec_.fence != nullptr) [[unlikely]]
    spec_.fence->OnSent(*session_, id_);
}

// Returns the end of the block.
char* LinkCall::WriteContext(char* body) const {
  if (context_->sent_listener != nullptr) {
    context_->sent_listener->OnContextSent(*context_, session_->link()->incarnation());
  }
  if (bulk_.has_value() && bulk_->context_bytes > 0) {
    EncodeTravellingContext(context_bytes_, body);
    return body + kContextHeaderBytes;
  }
  context_->Encode(body);
  return body + context_bytes_;
}

void LinkCall::OnWritable(Link& link) {
  VERBENA_DCHECK(active()) << method_.full_name;
  if (state_ == State::kSent) {
    EncodeLanding(landing_, link.Append(LandingFrame(id_), body_bytes));
    return;
  }
  if (RequestChanged()) {
    FailChanged();
    return;
  }
  WriteRequest(link.Append(RequestHeader(), body_bytes, invalidated));
}

void LinkCall::OnPayloadAhead() {
  if (RequestChanged()) {
    FailChanged();
  } else {
    SendRequest();
  }
}

// --- The response

absl::StatusOr<size_t> LinkCall::ReadPrefix(const FrameHeader& frame, const char* body) {
  size_t prefix = 0;
  if ((frame.flags & kFrameHasContext) != 0) {
    VERBENA_ASSIGN_OR_RETURN(prefix, ReadContext(frame, body));
  }
  if ((frame.flags & kFrameHasBulk) != 0) {
    VERBENA_ASSIGN_OR_RETURN(size_t bulk, ReadBulk(body + prefix, frame.body_bytes - prefix));
    prefix += bulk;
  }
  return prefix;
}

// Returns where in `body` the reply begins: behind the bulk header, and a payload in the frame.
absl::StatusOr<size_t> LinkCall::ReadBulk(const char* body, size_t bytes) {
  if (!bulk_.has_value()) return ReadUnleased(body, bytes);
  VERBENA_ASSIGN_OR_RETURN(ResponseBulk bulk, ParseResponseBulk(body, bytes));
  const size_t ahead = bulk.frame_bytes();
  if (bulk.has_payload && !method_.response_payload()) {
    VERBENA_RETURN_IF_ERROR(DropPayload(bulk));
  }
  VERBENA_RETURN_IF_ERROR(bulk_->OnResponse(*session_, bulk, body + ResponseBulk::kEncodedBytes));
  return ahead;
}

void LinkCall::SetFailure(const FrameHeader& frame, const char* body, size_t skip) {
  status_ = FailureOf(frame, body + skip, frame.body_bytes - skip);
  // Until the lease of that memory has ended (ClientBulk::ReadFailure).
  if (bulk_.has_value() && bulk_->has_message()) {
    status_ = Annotate(status_, "the server's message, which did not fit a frame, was lost");
    bulk_->NoteFailure();
  }
}

absl::Status LinkCall::OnResponse(const FrameHeader& frame, const char* body) {
  if (state_ == State::kQueued) [[unlikely]]
    return Unasked(frame);
  if (timed_) [[unlikely]]
    NoteTime();
  if (spec_.fence != nullptr) [[unlikely]]
    spec_.fence->OnAnswered();
  size_t skip = 0;
  if (frame.flags != 0) {
    VERBENA_ASSIGN_OR_RETURN(skip, ReadPrefix(frame, body));
  }
  if (info_ != nullptr) info_->reply_bytes = frame.body_bytes - static_cast<uint32_t>(skip);
  // A reply that lies in a landing is parsed when the lease has ended.
  const bool in_frame = !bulk_.has_value() || !bulk_->has_message();
  if (frame.status_code != 0) {
    SetFailure(frame, body, skip);
  } else if (in_frame &&
             !reply_.ParseFromArray(body + skip, static_cast<int>(frame.body_bytes - skip))) {
    SetUnparsed(frame.body_bytes);
  }
  if (bulk_.has_value()) bulk_->OnFinal(*session_);
  session_->NoteAnswered();
  EndAndWake();
  return absl::OkStatus();
}

void LinkCall::OnLinkDown(const absl::Status& reason) {
  const bool waits = !landing_needed();
  if (bulk_.has_value()) bulk_->OnLinkDown(/*sent=*/state_ != State::kQueued);
  if (spec_.fence != nullptr) spec_.fence->OnLost();
  lost_unsent_ = EndWithLink(reason);
  if (waits) Resume();
}

bool LinkCall::LetGo(bool sent) {
  if (bulk_.has_value()) session_->Quarantine(id_, bulk_->Abandon(*session_, sent));
  if (!sent || spec_.fence == nullptr) return false;
  spec_.fence->Keep(*session_, id_);
  return true;
}

// --- A landing that the server asks for

absl::Status LinkCall::OnLandingNeeded(const LandingRequest& wanted) {
  if (state_ != State::kSent || wanted_.has_value()) return LandingOutOfTurn();
  wanted_ = wanted;
  state_ = State::kLandingNeeded;
  if (spec_.fence != nullptr) spec_.fence->OnLandingNeeded();
  Resume();
  return absl::OkStatus();
}

// The call may end while this waits, and its link may be lost: then the await returns its status.
Task<absl::Status> LinkCall::GiveLanding() {
  const Endpoint& endpoint = session_->link()->endpoint();
  absl::Status status = wanted_->payload_bytes > 0 && !method_.response_payload()
                            ? UnknownPayload()
                            : CheckWanted(*wanted_, endpoint.limits());
  Buffer buffer;
  if (status.ok()) {
    absl::StatusOr<Buffer> allocated = co_await AllocateLanding(
        session_->landing_quota(), endpoint, wanted_->payload_bytes + wanted_->message_bytes,
        {.deadline = spec_.deadline});
    status = allocated.status();
    if (allocated.ok()) buffer = *std::move(allocated);
  }
  while (status.ok() && landing_needed() && session_->link()->free_leases() == 0) {
    status = co_await WithDeadline(FreeLeases(*session_->link(), 1), spec_.deadline);
  }
  if (landing_needed()) {
    if (status.ok()) {
      if (!bulk_.has_value()) bulk_.emplace();
      const absl::StatusOr<RemoteRange> terms =
          bulk_->OpenAsked(*session_->link(), std::move(buffer), *wanted_);
      status = terms.status();
      if (terms.ok()) SendLanding(*terms);
    }
    if (!status.ok()) GiveUp(std::move(status));
  }
  co_return co_await *this;
}

void LinkCall::SendLanding(const RemoteRange& landing) {
  state_ = State::kSent;
  if (spec_.fence != nullptr) spec_.fence->OnSent(*session_, id_);
  landing_ = landing;
  body_bytes = kLandingBytes;
  invalidated = 0;
  LimitAnswer();
  Link& link = *session_->link();
  if (char* body = link.Append(LandingFrame(id_), body_bytes)) {
    EncodeLanding(landing_, body);
  } else {
    link.AwaitWritable(*this);
  }
}

void LinkCall::LimitAnswer() {
  const TimePoint limit = SaturatingAdd(scheduler_.now(), kMaxLandingWait);
  if (deadline_ <= limit) return;
  if (has_deadline()) scheduler_.StopTimer(*this);
  deadline_ = limit;
  answer_limited_ = true;
  scheduler_.StartTimer(*this, limit);
}

void LinkCall::OnTimer() {
  if (answer_limited_) {
    CloseUnanswered();
  } else {
    CallInFlight::OnTimer();
  }
}

// The server may still write to the landing: its memory is safe once the link is down.
void LinkCall::CloseUnanswered() {
  Link& link = *session_->link();
  link.Close(absl::UnavailableError(
      fmt::format("{} asked for a landing of {} bytes for its response to {}, and has not answered "
                  "for {} s since it got one",
                  link.peer(), landing_.bytes, method_.full_name,
                  std::chrono::duration_cast<std::chrono::seconds>(kMaxLandingWait).count())));
}

// --- The end

absl::Status LinkCall::AnswerLost(absl::Status status) const {
  return WithOutcome(std::move(status),
                     method_.dedupe ? Outcome::kMaybeExecuted : Outcome::kExecuted);
}

absl::Status LinkCall::Waited(absl::Status status, absl::Status waited) const {
  return status.ok() && !waited.ok() ? AnswerLost(std::move(waited)) : std::move(status);
}

Task<absl::Status> LinkCall::PlaceResponse() {
  absl::Status linked = co_await AwaitLeases(0, /*wait_for_ready=*/false);
  if (!linked.ok()) co_return AnswerLost(std::move(linked));
  absl::StatusOr<Buffer> memory =
      co_await AllocateLanding(session_->landing_quota(), session_->link()->endpoint(),
                               bulk_->response_payload_bytes(), {.deadline = spec_.deadline});
  if (!memory.ok()) co_return AnswerLost(memory.status());
  bulk_->PlaceResponse(*std::move(memory));
  co_return absl::OkStatus();
}

absl::Status LinkCall::ReadResponse() {
  if (absl::Status intact = bulk_->CheckResponse(); !intact.ok()) {
    return AnswerLost(std::move(intact));
  }
  if (!bulk_->has_message() || bulk_->ParseMessage(reply_)) return absl::OkStatus();
  return WithOutcome(
      absl::InternalError(fmt::format("the reply does not parse as {}", TypeNameOf(reply_))),
      Outcome::kExecuted);
}

void LinkCall::CountPayloads() const {
  ExecutorCounts* const all = CountsOf(scheduler_);
  if (all == nullptr) return;
  MethodCounts& counts = all->client.Of(method_);
  counts.request_payload_bytes.Add(bulk_->request_payload_bytes());
  counts.reply_payload_bytes.Add(bulk_->response_payload_bytes());
}

absl::Status LinkCall::SettleBulk(absl::Status status) {
  CallBuffers& buffers = spec_.buffers;
  if (bulk_->lost() || bulk_->settling()) {
    buffers.GiveBack(std::move(bulk_->payload), /*may_be_read=*/true);
    VERBENA_RETURN_IF_ERROR(status);
    return AnswerLost(
        absl::UnavailableError("the link was lost before the response's payload was safe"));
  }
  if (status.ok()) {
    status = ReadResponse();
  } else if (bulk_->has_failure()) {
    status = bulk_->ReadFailure(status);
  }
  buffers.GiveBack(std::move(bulk_->payload), /*may_be_read=*/false);
  if (status.ok()) {
    buffers.SetResponse(bulk_->TakeResponsePayload(), bulk_->has_response_payload());
  } else if (buffers.gave_room() && !bulk_->landing_lost()) {
    buffers.GiveBackRoom(std::move(bulk_->landing));
  }
  if (info_ != nullptr && bulk_->has_message()) {
    info_->reply_bytes = bulk_->response_message_bytes();
  }
  if (status.ok()) CountPayloads();
  return status;
}

}  // namespace verbena::internal
