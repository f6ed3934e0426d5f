#include "verbena/rpc/client/fence.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/rpc/client/channel.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {

// A request can name all attempts before its own: of each, one request has left.
static_assert(RetryPolicy::kMaxAttempts - 1 <= EarlierAttempt::kMost);

SentAttempt::SentAttempt(const ClientSession& session, CallId id)
    : incarnation(session.link()->incarnation()),
      name{.link = session.link()->peer_identity(),
           .executor = static_cast<uint16_t>(session.link()->peer_executor()),
           .slot = static_cast<uint16_t>(id.slot),
           .generation = id.generation} {}

KeptSlot::KeptSlot(AttemptFence& fence, const MethodDescriptor& method, ClientSession& session,
                   CallId id)
    : fence_(fence), method_(method), session_(&session), id_(id), attempt_(session, id) {
  session.HandOver(id, *this);
}

KeptSlot::~KeptSlot() {
  if (session_ != nullptr) session_->Release(id_);
}

absl::Status KeptSlot::OnResponse(const FrameHeader& frame, const char*) {
  std::exchange(session_, nullptr)->ReleaseLate(id_, frame);
  fence_.changed_.Set();
  return absl::OkStatus();
}

// The CANCEL tells the server that it gets none.
absl::Status KeptSlot::OnLandingNeeded(const LandingRequest&) { return absl::OkStatus(); }

absl::Status KeptSlot::OnStreamFrame(const FrameHeader& frame, const char*) {
  return NotAStream(frame);
}

void KeptSlot::OnLinkDown(const absl::Status&) {
  std::exchange(session_, nullptr)->Release(id_);
  fence_.lost_.push_back(attempt_);
  fence_.changed_.Set();
}

AttemptFence::~AttemptFence() {
  if (limit_ != kNever) context_.scheduler->StopTimer(*this);
}

CancelScope* AttemptFence::Begin(const TriedServers& tried) {
  tried_ = &tried;
  timed_out_ = false;
  waits_ = false;  // in an attempt that was destroyed
  sent_.reset();
  if (call_.attempt_timeout <= Duration::zero()) return context_.cancel;
  // Without a deadline: the scope is not always cancelled at limit_, and calls that an interceptor
  // makes in it must not end then.
  scope_.emplace(context_.cancel);
  StartTimer();
  return &*scope_;
}

void AttemptFence::StartTimer() {
  limit_ = SaturatingAdd(context_.scheduler->now(), call_.attempt_timeout);
  context_.scheduler->StartTimer(*this, limit_);
}

absl::Status AttemptFence::End(absl::Status status) {
  OnAnswered();
  scope_.reset();
  const bool is_callers = context_.cancel != nullptr && context_.cancel->requested();
  // The handler's answer to the CANCEL that attempt_timeout has sent.
  if (!timed_out_ || is_callers || !absl::IsCancelled(status)) return status;
  return WithOutcome(
      absl::DeadlineExceededError(fmt::format("the attempt was cancelled after attempt_timeout: {}",
                                              std::string(status.message()))),
      OutcomeOf(status));
}

void AttemptFence::OnAnswered() {
  sent_.reset();
  if (limit_ == kNever) return;
  // Servers know the limit, too: their answer to it may be here before the timer is called.
  if (limit_ <= context_.scheduler->now()) timed_out_ = true;
  limit_ = kNever;
  context_.scheduler->StopTimer(*this);
}

void AttemptFence::OnLost() {
  if (sent_.has_value()) lost_.push_back(sent_->attempt);
  sent_.reset();
}

AttemptFence::Place AttemptFence::PlaceOf(const ClientSession& session) {
  const Link& link = *session.link();
  return {.incarnation = link.incarnation(), .takes_names = link.names_attempts()};
}

bool AttemptFence::WaitsFor(const ClientSession& session) const {
  const uint64_t incarnation = session.link()->incarnation();
  return std::any_of(kept_.begin(), kept_.end(),
                     [incarnation](const auto& each) { return each->MayRunAt(incarnation); });
}

void AttemptFence::NameLost(CallContext& context) const {
  context.earlier.clear();
  if (!place_.takes_names) return;
  for (const SentAttempt& each : lost_) {
    if (each.incarnation == place_.incarnation) context.earlier.push_back(each.name);
  }
}

Task<absl::Status> AttemptFence::Await(Connection& connection, CallContext& context) {
  for (bool waited = false;; waited = true) {
    ClientSession* session = connection.usable_session();
    if (session == nullptr) {
      VERBENA_CO_ASSIGN_OR_RETURN(
          session, co_await connection.Session(call_.deadline, call_.options.wait_for_ready));
    }
    if (!WaitsFor(*session)) {
      if (waited && scope_.has_value()) StartTimer();
      place_ = PlaceOf(*session);
      NameLost(context);
      co_return absl::OkStatus();
    }
    waits_ = true;
    changed_.Reset();
    absl::Status ended = co_await WithDeadline(WaitFor(changed_), call_.deadline);
    waits_ = false;
    if (absl::IsDeadlineExceeded(ended)) {
      ended = absl::DeadlineExceededError(
          fmt::format("an earlier attempt of {} still runs at its server, and no other one may "
                      "begin there before that has ended",
                      call_.method.full_name));
    }
    VERBENA_CO_RETURN_IF_ERROR(ended);
  }
}

void AttemptFence::Keep(ClientSession& session, CallId id) {
  sent_.reset();
  kept_.push_back(std::make_unique<KeptSlot>(*this, call_.method, session, id));
}

bool AttemptFence::IsOtherReady() const {
  // The next attempt would need this memory for itself alone.
  if (call_.brings_room) return false;
  const Connection* other = call_.channel->Apart(*tried_, call_.options.route_key);
  return other != nullptr && !tried_->Has(*other) && other->usable_session() != nullptr;
}

void AttemptFence::CancelSent() {
  if (CallTally* tally = sent_->session->tally()) tally->OnFailure();
  sent_->session->SendCancel(sent_->id);
}

void AttemptFence::OnTimer() {
  const bool is_owed = sent_.has_value() && sent_->is_owed;
  if ((waits_ || is_owed) && !IsOtherReady()) {
    if (is_owed && !std::exchange(timed_out_, true)) CancelSent();
    // Another server may have become ready by then.
    StartTimer();
    return;
  }
  timed_out_ = true;
  limit_ = kNever;
  scope_->Request(absl::StatusCode::kDeadlineExceeded);
}

}  // namespace verbena::internal
