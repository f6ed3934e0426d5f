#include "verbena/rpc/server/server_call.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "fmt/format.h"
#include "verbena/rpc/internal/allocate.h"
#include "verbena/rpc/internal/frames.h"
#include "verbena/rpc/internal/status_codec.h"
#include "verbena/rpc/server/server_session.h"
#include "verbena/rpc/server/server_shard.h"
#include "verbena/transport/coro/status_macros.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/log/mutant.h"

namespace verbena::internal {
namespace {

// `left`, in microseconds, is what a peer claims.
TimePoint DeadlineIn(uint64_t left, TimePoint now) {
  const auto most = std::chrono::duration_cast<std::chrono::microseconds>(kNever - now);
  if (left >= static_cast<uint64_t>(most.count())) return kNever;
  return now + std::chrono::microseconds(left);
}

// As NotExecuted() marks it.
std::string RefusalMark(uint64_t refusal) { return fmt::format("{}", refusal); }

bool IsRefusal(const absl::Status& status, uint64_t refusal) {
  if (VERBENA_MUTANT(kForeignRefusalTaken)) return OutcomeOf(status) == Outcome::kNotExecuted;
  const std::string mark = RefusalMark(refusal);
  return status.GetPayload(kRefusalPayloadUrl) == absl::Cord(mark);
}

}  // namespace

ServerCall::ServerCall(ServerShard& shard, int method_index)
    : shard_(shard),
      method_index_(method_index),
      entry_(shard.methods().entry(method_index)),
      request_(entry_.method->request_prototype->New()),
      reply_(entry_.method->reply_prototype->New()) {}

ServerCall::~ServerCall() { StopTimer(); }

ServerBulk& ServerCall::Bulk() {
  if (!has_bulk_) BeginBulk(context_->deadline().when(), {}, {});
  return *bulk_;
}

void ServerCall::RespondUnlikeTheMethod() {
  Respond(absl::InvalidArgumentError(fmt::format(
              "{} takes no payload with its request, and was given one", method_name())),
          Outcome::kNotExecuted);
}

absl::Status ServerCall::NotParsed() const {
  return absl::InvalidArgumentError(fmt::format("the request of {} ({} bytes) does not parse as {}",
                                                entry_.method->descriptor->full_name,
                                                request_bytes_, request_->GetTypeName()));
}

void ServerCall::BeginBulk(TimePoint deadline, const RequestBulk& bulk, UsedGrant landing) {
  if (bulk_ == nullptr) bulk_ = std::make_unique<ServerBulk>();
  has_bulk_ = true;
  bulk_->Begin(shard_, *session_, id_, deadline, bulk, std::move(landing));
}

void ServerCall::Start(ServerSession& session, CallId id, const FrameHeader& frame,
                       const char* body, IncomingBulk* bulk) {
  session_ = &session;
  id_ = id;
  const TimePoint deadline = deadline_ =
      frame.deadline() == 0 ? kNever : DeadlineIn(frame.deadline(), shard_.executor().now());
  request_bytes_ = frame.body_bytes;
  if (bulk != nullptr) {
    BeginBulk(deadline, bulk->request, std::move(bulk->landing));
    body += bulk->request.encoded_bytes();
    request_bytes_ -= bulk->request.encoded_bytes();
  }
  const bool in_frame = bulk == nullptr || bulk->request.message_bytes == 0;
  if (in_frame && !request_->ParseFromArray(body, static_cast<int>(request_bytes_))) {
    Respond(NotParsed(), Outcome::kNotExecuted);
    return;
  }
  if (bulk != nullptr && bulk->request.has_payload &&
      !entry_.method->descriptor->request_payload()) {
    RespondUnlikeTheMethod();
    return;
  }
  cancel_.emplace();
  context_.emplace(ServerContext(*entry_.method->descriptor, *cancel_, session.peer(), *this));
  if (deadline != kNever) {
    context_->deadline_ = Deadline(deadline);
    shard_.executor().StartTimer(*this, deadline);
    timer_running_ = true;
  }
  if (bulk != nullptr && bulk_->fetches()) {
    fetching_ = true;
    task_ = FetchAndRun();
    task_.Start(shard_.executor(), &*cancel_, this);
    return;
  }
  RunHandler();
}

Task<absl::Status> ServerCall::FetchAndRun() {
  VERBENA_CO_RETURN_IF_ERROR(co_await bulk_->Fetch());
  if (bulk_->fetches_message()) {
    request_bytes_ = bulk_->message_bytes();
    if (!bulk_->ParseMessage(*request_)) co_return NotParsed();
  }
  if (cancel_->requested()) co_return cancel_->status();
  fetching_ = false;
  Task<absl::Status> handler =
      entry_.method->invoke(*entry_.service, *context_, *request_, *reply_);
  if (!handler) co_return NoTask();
  co_return co_await std::move(handler);
}

// A handler need not be a coroutine, so it may throw before there is a Task to hold what it threw.
void ServerCall::RunHandler() {
  try {
    task_ = entry_.method->invoke(*entry_.service, *context_, *request_, *reply_);
  } catch (...) {
    Respond(Thrown(), Outcome::kMaybeExecuted);
    return;
  }
  if (!task_) {
    Respond(NoTask(), Outcome::kMaybeExecuted);
    return;
  }
  task_.Start(shard_.executor(), &*cancel_, this);
}

// The exception's text goes to the log only: it may hold what the callers must not see.
absl::Status ServerCall::Thrown() const {
  try {
    throw;
  } catch (const std::exception& error) {
    shard_.LogThrown(method_name(), error.what());
  } catch (...) {
    shard_.LogThrown(method_name(), "something unknown");
  }
  return absl::InternalError(
      fmt::format("the handler of {} failed; the server's log says how", method_name()));
}

absl::Status ServerCall::NoTask() const {
  return absl::InternalError(
      fmt::format("the handler of {} returned an empty Task", method_name()));
}

void ServerCall::OnTaskDone() {
  absl::Status status;
  Outcome outcome = Outcome::kExecuted;
  try {
    status = task_.TakeResult();
  } catch (...) {
    status = Thrown();
    outcome = Outcome::kMaybeExecuted;
  }
  task_ = {};
  if (!status.ok() && context_->refusal_ != 0) [[unlikely]] {
    if (IsRefusal(status, context_->refusal_)) outcome = Outcome::kNotExecuted;
  }
  if (fetching_) outcome = Outcome::kNotExecuted;
  if (!status.ok()) {
    Respond(status, outcome);
  } else if (asks_landing_) {
    Respond(absl::OkStatus(), outcome);
  } else {
    Complete();
  }
}

void ServerCall::Complete() {
  body_bytes = reply_bytes_ = reply_->ByteSizeLong();
  Link* link = session_->link();
  const bool large = link != nullptr && body_bytes > link->max_body_bytes();
  if (has_bulk_ || large) {
    CompleteWithBulk();
  } else {
    Respond(absl::OkStatus(), Outcome::kExecuted);
  }
}

void ServerCall::CompleteWithBulk() {
  absl::Status planned = Bulk().Plan(*entry_.method->descriptor, body_bytes);
  if (!planned.ok() || !bulk_->needs_landing()) {
    Respond(planned, Outcome::kExecuted);
    return;
  }
  asks_landing_ = true;
  task_ = bulk_->AskForLanding(*reply_);
  task_.Start(shard_.executor(), &*cancel_, this);
}

absl::Status ServerCall::OnLanding(const RemoteRange& landing) {
  return has_bulk_ ? bulk_->OnLanding(landing) : absl::OkStatus();
}

void ServerCall::Cancel(absl::StatusCode reason) {
  if (asks_landing_ && VERBENA_MUTANT(kLandingOutwaitsItsCall)) return;
  if (cancel_.has_value()) cancel_->Request(reason);
}

void ServerCall::OnTimer() {
  timer_running_ = false;
  if (context_.has_value()) {
    Cancel(absl::StatusCode::kDeadlineExceeded);
  } else {
    OnResponseOverdue();
  }
}

void ServerCall::StopTimer() {
  if (std::exchange(timer_running_, false)) shard_.executor().StopTimer(*this);
}

void ServerCall::OnLinkDown() {
  if (cancel_.has_value()) {
    Cancel(absl::StatusCode::kCancelled);
  } else {
    StopTimer();
    Finish();
  }
}

void ServerCall::Respond(const absl::Status& status, Outcome outcome) {
  StopTimer();
  context_.reset();
  cancel_.reset();
  if (!status.ok()) DropFailedReply();
  Link* link = session_->link();
  if (link == nullptr || !link->open()) {
    Finish();
    return;
  }
  response_ = ResponseFrame(id_);
  if (has_bulk_) EndBulkRequest(*link);
  if (!status.ok()) {
    SetFailure(status, outcome, link->max_body_bytes());
  } else if (has_bulk_ && StartBulkResponse(*link)) {
    return;  // the response leaves behind the WRITEs
  }
  AppendResponse();
}

// The handler may have made a large reply before it failed.
void ServerCall::DropFailedReply() {
  reply_bytes_ = reply_->ByteSizeLong();
  DropReplyBeyond(kMaxPooledMessageBytes);
}

void ServerCall::DropRequestBeyond(size_t most) {
  if (request_bytes_ <= most) return;
  request_.reset(entry_.method->request_prototype->New());
  request_bytes_ = 0;
}

void ServerCall::DropReplyBeyond(size_t most) {
  if (reply_bytes_ <= most) return;
  reply_.reset(entry_.method->reply_prototype->New());
  reply_bytes_ = 0;
}

// The shares that DropRequest() gives back count the request's message, too, so a large message is
// freed with them.
void ServerCall::EndBulkRequest(Link& link) {
  invalidated = bulk_->FinalKey(link);
  DropRequestBeyond(kMaxPooledMessageBytes);
  bulk_->DropRequest();
  if (const size_t bytes = bulk_->earned_landing_bytes()) session_->OfferLanding(bytes);
}

bool ServerCall::StartBulkResponse(Link& link) {
  if (!bulk_->answers()) return false;
  response_.flags = kFrameHasBulk;
  body_bytes = ResponseBulk::kEncodedBytes + (bulk_->reply_travels() ? 0 : body_bytes);
  return bulk_->StartWrites(link, *this);
}

void ServerCall::OnTransferPosted() {
  bulk_->ForgetWrites();
  CheckReply();
  AppendResponse();
}

// Comes before OnTransferPosted() only if the link is lost, which OnLinkDown() has handled.
void ServerCall::OnTransferDone(const absl::Status&) {}

void ServerCall::AppendResponse() {
  Link& link = *session_->link();
  if (char* body = link.Append(response_, body_bytes, invalidated)) {
    WriteResponse(body);
    link.SendNowIfAlone();
    Finish();
  } else {
    AwaitRoom(link);
  }
}

void ServerCall::AwaitRoom(Link& link) {
  DropRequestBeyond(kMaxWaitingRequestBytes);
  if (has_bulk_ && bulk_->reply_travels()) DropReplyBeyond(0);
  link.AwaitWritable(*this);
  session_->BeginWait();
  if (VERBENA_MUTANT(kUnsentResponseKept)) return;
  StartResponseTimer(SaturatingAdd(shard_.executor().now(), shard_.limits().response_grace));
}

void ServerCall::StartResponseTimer(TimePoint until) {
  frames_sent_ = session_->link()->stats().frames_sent;
  shard_.executor().StartTimer(*this, until);
  timer_running_ = true;
}

void ServerCall::OnResponseOverdue() {
  Link& link = *session_->link();
  // A response waits its turn behind others, as long as the client takes those, but no longer than
  // the grace after its deadline.
  const TimePoint now = shard_.executor().now();
  const Duration grace = shard_.limits().response_grace;
  const TimePoint last = SaturatingAdd(deadline_, grace);
  if (link.stats().frames_sent != frames_sent_ && now < last) {
    StartResponseTimer(std::min(last, SaturatingAdd(now, grace)));
    return;
  }
  link.Close(absl::DeadlineExceededError(fmt::format(
      "{} has not taken the response of {} for {} ms (ServerOptions::response_grace): it issues no "
      "credits",
      session_->peer(), method_name(),
      std::chrono::duration_cast<std::chrono::milliseconds>(grace).count())));
}

void ServerCall::SetFailure(const absl::Status& status, Outcome outcome, size_t max_bytes) {
  response_.status_code = static_cast<uint8_t>(status.code());
  response_.outcome = static_cast<uint8_t>(outcome);
  failure_body_ = EncodeStatusBody(status, max_bytes);
  body_bytes = failure_body_.size();
  shard_.NoteFailure();
}

// A handler that has ended may have left others access to the reply. The reply's size was cached
// when the handler ended, and serializing a larger reply would write past the frame. The failure
// takes no more room than the reply.
void ServerCall::CheckReply() {
  const bool in_frame = response_.status_code == 0 && !(has_bulk_ && bulk_->reply_travels());
  if (!in_frame || VERBENA_MUTANT(kChangedReplySent)) return;
  const size_t before = body_bytes - response_prefix();
  const size_t now = reply_->ByteSizeLong();
  if (now == before) return;
  reply_bytes_ = now;
  SetFailure(absl::InternalError(
                 fmt::format("the reply of {} had {} bytes when its handler ended, and has {} now",
                             method_name(), before, now)),
             Outcome::kExecuted, before);
  body_bytes += response_prefix();
}

void ServerCall::OnWritable(Link& link) {
  StopTimer();
  session_->EndWait();
  CheckReply();
  WriteResponse(link.Append(response_, body_bytes, invalidated));
  Finish();
}

void ServerCall::WriteResponse(char* body) {
  if (response_.flags != 0) {
    bulk_->response().Encode(body);
    body += ResponseBulk::kEncodedBytes;
  }
  if (response_.status_code != 0) {
    failure_body_.copy(body, failure_body_.size());
  } else if (response_.flags == 0 || !bulk_->reply_travels()) {  // otherwise in the client's memory
    reply_->SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(body));
  }
}

void ServerCall::Finish() {
  SendWaiter::Unlink();
  if (has_bulk_ || request_bytes_ > kMaxPooledMessageBytes ||
      reply_bytes_ > kMaxPooledMessageBytes) {
    FinishLarge();
  }
  std::exchange(session_, nullptr)->OnCallDone(*this);
  reply_->Clear();
  shard_.Recycle(*this);
}

void ServerCall::FinishLarge() {
  if (has_bulk_) {
    bulk_->Clear();
    has_bulk_ = fetching_ = asks_landing_ = false;
    invalidated = 0;
  }
  DropReplyBeyond(kMaxPooledMessageBytes);
  DropRequestBeyond(kMaxPooledMessageBytes);
}

}  // namespace verbena::internal

// ServerContext. Defined here, since every program with a server links this file: libraries of
// handlers are then linked in any order.
namespace verbena {

// The mark in the Status is this call's own. So it tells the refusal from an error that the handler
// meets later, also from one that says of another call that it was not executed.
absl::Status ServerContext::NotExecuted(absl::Status status) {
  static std::atomic<uint64_t> last_refusal{0};
  status = WithOutcome(std::move(status), Outcome::kNotExecuted);
  if (VERBENA_MUTANT(kHandlersRefusalExecuted)) return status;
  if (refusal_ == 0) refusal_ = last_refusal.fetch_add(1, std::memory_order_relaxed) + 1;
  const std::string mark = internal::RefusalMark(refusal_);
  status.SetPayload(internal::kRefusalPayloadUrl, absl::Cord(mark));
  return status;
}

size_t ServerContext::request_payload_bytes() const {
  return call_.has_bulk_ ? call_.bulk_->request_payload_bytes() : 0;
}

bool ServerContext::has_request_payload() const {
  return call_.has_bulk_ && call_.bulk_->has_request_payload();
}

Buffer ServerContext::TakeRequestPayload() {
  return call_.has_bulk_ ? call_.bulk_->TakeRequestPayload() : Buffer();
}

Task<absl::StatusOr<Buffer>> ServerContext::AllocateBuffer(size_t bytes) {
  internal::Link* link = call_.session_->link();
  if (link == nullptr) co_return absl::UnavailableError("the caller's link was lost");
  co_return co_await call_.session_->client().responses().Allocate(
      link->endpoint(), bytes,
      {.deadline = call_.deadline_,
       .longest = call_.shard_.limits().memory_wait,
       .holders = &call_.shard_.send_holders()},
      call_.session_->peer(), call_.shard_.memory_refused());
}

std::string ServerContext::device_name() const {
  const internal::Link* link = call_.session_->link();
  return link == nullptr ? "" : link->endpoint().device_name();
}

void ServerContext::SetResponsePayload(Payload payload) {
  call_.Bulk().SetResponse(std::move(payload));
}

size_t ServerContext::response_payload_room() const {
  return call_.has_bulk_ ? call_.bulk_->room() : 0;
}

Task<absl::Status> ServerContext::WriteResponsePayload(BufferView part) {
  return call_.Bulk().Write(part);
}

absl::StatusOr<RemoteMemory> ServerContext::Remote(const RemoteMemoryHandle& handle) {
  internal::Link* link = call_.session_->link();
  if (link == nullptr) return absl::UnavailableError("the caller's link was lost");
  return internal::RemoteOver(*link, handle);
}

Task<absl::StatusOr<Loan>> ServerContext::Lend(BufferView view, LeaseAccess access) {
  internal::Link* link = call_.session_->link();
  if (link == nullptr) co_return absl::UnavailableError("the caller's link was lost");
  co_return co_await internal::LendOver(*link, view, access, call_.deadline_);
}

}  // namespace verbena
