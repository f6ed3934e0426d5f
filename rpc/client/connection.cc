#include "verbena/rpc/client/connection.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/rpc/client/device_scores.h"
#include "verbena/rpc/resolver.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/random.h"
#include "verbena/transport/base/retry_after.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/combinators.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace {

// Whether the attempt failed for a reason that may lie in the device. Another device does not help
// with an overloaded or silent server.
bool MayGoOverAnotherDevice(const absl::Status& failure) {
  return !absl::IsResourceExhausted(failure) && !absl::IsCancelled(failure) &&
         !absl::IsDeadlineExceeded(failure);
}

bool IsAmong(const std::vector<size_t>& devices, size_t device) {
  return std::ranges::find(devices, device) != devices.end();
}

// The wait before the client comes again, from the one that the server has named. Random, so that
// clients that were refused together do not come together. A program's bootstrap may name any wait,
// also for ever.
Duration LaterThan(Duration wait) {
  wait = std::min(wait, Duration::max() / 2);
  return wait + Duration(Random::Real().Below(static_cast<uint64_t>(wait.count() / 5) + 1));
}

}  // namespace

Connection::Connection(Shard& shard, std::string target, const ExecutorWish& wish,
                       std::vector<std::string> others)
    : shard_(shard),
      target_(std::move(target)),
      server_(std::hash<std::string>()(target_)),
      wish_(wish),
      landing_quota_(std::make_shared<Quota>(
          std::max<size_t>(shard.wanted_limits().memory.landing_bytes / 2, 1), nullptr,
          Quota::Words{.whose = fmt::format("landings that {} asked for", target_),
                       .remedy = "Make fewer such calls at once, pass response_payload_into, or "
                                 "raise LinkLimits::memory.landing_bytes, of which one server may "
                                 "have half"})),
      stream_share_(std::make_shared<StreamShare>(shard.stream_memory(),
                                                  shard.stream_memory().budget_bytes() / 2,
                                                  fmt::format("the streams of {}", target_))),
      others_(std::move(others)),
      backoff_(kInitialBackoff, shard.wanted_limits().longest_reconnect_pause) {
  VERBENA_CHECK(others_.size() < ResolvedServer::kMaxAddresses)
      << target_ << " has " << others_.size() << " further addresses";
}

Connection::~Connection() = default;

Task<absl::Status> Connection::Ready() {
  while (usable_session() == nullptr) {
    if (closed_) co_return Unused();
    if (!connecting_) {
      if (shard_.closing()) co_return absl::UnavailableError("the runtime is being destroyed");
      if (shard_.executor().now() < next_attempt_) co_return last_error_;
      connecting_ = true;
      NoteChange();
      // Not the caller's own task: other callers wait for the same attempt.
      shard_.tasks().Spawn(Attempt());
    }
    // Waits until the attempt has ended, or the search for the first device has made a link.
    VERBENA_CO_RETURN_IF_ERROR(co_await state_changed_.Wait());
    if (!connecting_) VERBENA_CO_RETURN_IF_ERROR(last_error_);
  }
  co_return absl::OkStatus();
}

Task<void> Connection::Attempt() {
  std::erase_if(retired_, [](const auto& session) { return session->down(); });
  attempt_.emplace((co_await CurrentContext()).cancel);
  const absl::Status ended = co_await Caught(ConnectInTurn()).In(&*attempt_);
  attempt_.reset();
  put_off_ = absl::OkStatus();
  connecting_ = false;
  // A link that opens has yet to prove that it is of use: see Retire(). A failed attempt does not
  // count if the search for the first device has made a link meanwhile.
  if (!ended.ok() && usable_session() == nullptr) {
    last_error_ = ended;
    PutOffNextAttempt();
  }
  NoteChange();
  if (draining_) {
    DrainLink();
  } else if (closed_) {
    CloseLinks();
  }
}

Task<absl::Status> Connection::Caught(Task<absl::Status> connecting) const {
  try {
    co_return co_await std::move(connecting);
  } catch (const std::exception& error) {
    co_return absl::InternalError(
        fmt::format("connecting to {} failed with an exception: {}", target_, error.what()));
  } catch (...) {
    co_return absl::InternalError(
        fmt::format("connecting to {} failed with an exception", target_));
  }
}

void Connection::NoteChange() {
  ++revision_;
  state_changed_.Set();
  state_changed_.Reset();
}

const CallTally& Connection::KeepTally() {
  if (tally_ == nullptr) {
    tally_ = std::make_unique<CallTally>();
    if (current_ != nullptr) current_->set_tally(tally_.get());
  }
  return *tally_;
}

Task<absl::StatusOr<ClientSession*>> Connection::Session(Deadline deadline, bool wait_for_ready) {
  while (usable_session() == nullptr) {
    absl::Status waited = co_await WithDeadline(Ready(), deadline.when());
    if (waited.ok()) continue;
    if (absl::IsDeadlineExceeded(waited)) co_return TooLate();
    const bool patient =
        wait_for_ready || (deadline.is_set() && ReadRetryAfter(waited).has_value());
    if (!patient || closed_ || shard_.closing() || !MayPass(waited)) co_return waited;
    if (shard_.executor().now() >= deadline.when()) co_return TooLate();
    const TimePoint again = std::min(next_attempt_, deadline.when());
    // The search for the first device may make a link before `again`.
    waited = co_await WithDeadline(state_changed_.Wait(), again);
    if (absl::IsDeadlineExceeded(waited)) {
      if (shard_.executor().now() >= again) continue;
      co_return TooLate();  // the deadline of the caller's Task
    }
    VERBENA_CO_RETURN_IF_ERROR(waited);
  }
  co_return usable_session();
}

absl::Status Connection::TooLate() const {
  const absl::Status& last = put_off_.ok() ? last_error_ : put_off_;
  return absl::DeadlineExceededError(
      last.ok()
          ? fmt::format("the deadline passed before {} answered an attempt to connect", target_)
          : fmt::format("{} could not be reached before the deadline; the last error: {}", target_,
                        std::string(last.message())));
}

bool Connection::RemoveUser() {
  VERBENA_CHECK(users_ > 0) << "nobody uses the connection to " << target_;
  return --users_ == 0;
}

void Connection::Close() {
  VERBENA_CHECK(users_ == 0) << "users " << users_ << " of " << target_;
  closed_ = true;
  // Whoever still waits leaves before the attempt ends, and the connection with it.
  NoteChange();
  CancelAttempt();
  CloseLinks();
}

void Connection::CancelAttempt() {
  if (attempt_.has_value()) attempt_->Request();
  if (return_.has_value()) return_->Request();
}

absl::Status Connection::Unused() const {
  return absl::UnavailableError(
      fmt::format("no channel uses the connection to {} any more", target_));
}

void Connection::CloseLinks() {
  const absl::Status unused = absl::CancelledError("no channel uses the link any more");
  // Closing moves the current link to retired_.
  if (current_ != nullptr) current_->CloseLink(unused);
  for (size_t i = 0; i < retired_.size(); ++i) {
    retired_[i]->CloseLink(unused);
  }
}

void Connection::Drain() {
  VERBENA_CHECK(users_ == 0) << "users " << users_ << " of " << target_;
  closed_ = true;
  draining_ = true;
  DrainLink();
}

// A call that uses the connection may be about to begin on the link.
void Connection::DrainLink() {
  if (uses_ > 0) return;
  CancelAttempt();
  if (current_ != nullptr) current_->Drain();
}

void Connection::TellListeners() {
  for (ConnectionListener* listener : listeners_) listener->OnReadiness(*this);
  NoteChange();
}

uint32_t Connection::calls_in_flight() const {
  uint32_t calls = load();
  for (const std::unique_ptr<ClientSession>& session : retired_)
    calls += session->calls_in_flight();
  return calls;
}

bool Connection::ended() const {
  return closed_ && !connecting_ && !returning_ && uses_ == 0 &&
         (current_ == nullptr || current_->down()) &&
         std::all_of(retired_.begin(), retired_.end(),
                     [](const auto& session) { return session->down(); });
}

Task<absl::Status> Connection::ConnectInTurn() {
  const TimePoint latest =
      SaturatingAdd(shard_.executor().FreshNow(), shard_.wanted_limits().connect_timeout);
  for (;;) {
    absl::Status tried = co_await TryConnect();
    const std::optional<Duration> wait = ReadRetryAfter(tried);
    if (!wait.has_value()) co_return tried;
    const TimePoint again = SaturatingAdd(shard_.executor().now(), PauseAfter(tried));
    if (again >= latest) co_return tried;
    put_off_ = std::move(tried);
    VERBENA_CO_RETURN_IF_ERROR(co_await SleepUntil(again));
  }
}

Task<absl::Status> Connection::TryConnect() {
  // Before the attempt had begun.
  if (closed_) co_return Unused();
  const size_t count = 1 + others_.size();
  std::vector<size_t> left(count);
  for (size_t i = 0; i < count; ++i) left[i] = (first_address_ + i) % count;
  std::vector<absl::Status> failures(count);
  while (!left.empty()) {
    std::optional<OpenedAddress> opened = co_await OpenAny(left, failures);
    std::erase_if(left, [&failures](size_t address) { return !failures[address].ok(); });
    if (!opened.has_value()) break;
    const size_t address = opened->address;
    const absl::Status tried = co_await TryDevices(address, std::move(opened->stream));
    if (tried.ok()) co_return tried;
    if (closed_) co_return Unused();
    // The others lead to the same server, which has named a time.
    if (shard_.closing() || ReadRetryAfter(tried).has_value()) co_return tried;
    failures[address] = Explained(address, tried, opened->begun);
    std::erase(left, address);
    // The others lead to the same server, which is as silent there. Should this one lead elsewhere,
    // the next attempt prefers another one.
    if (absl::IsDeadlineExceeded(tried)) {
      first_address_ = (address + 1) % count;
      break;
    }
  }
  co_return TogetherOf(failures);
}

// The attempt's own time is no deadline of those who wait for it: the next attempt may do better.
absl::Status Connection::Explained(size_t address, absl::Status failure, TimePoint begun) const {
  using Seconds = std::chrono::duration<double>;
  if (!absl::IsDeadlineExceeded(failure)) return failure;
  if (failure == CancelStatus(failure.code())) {
    return absl::UnavailableError(fmt::format(
        "no answer from {} within connect_timeout ({:g} s): its process is stopped, a handler that "
        "blocks holds its executor, or its host cannot be reached",
        AddressAt(address), Seconds(shard_.wanted_limits().connect_timeout).count()));
  }
  // The peer has given up, or whoever reaches it.
  return absl::UnavailableError(fmt::format(
      "no link with {} after {:.1f} s: {}", AddressAt(address),
      Seconds(shard_.executor().FreshNow() - begun).count(), std::string(failure.message())));
}

// The addresses that are being tried, for one OpenAny(), in whose frame it lies.
struct Connection::AddressRace {
  const std::vector<size_t>& addresses;  // in order
  std::vector<absl::Status>& failures;   // by address
  const TimePoint begun;
  const Duration head_start;  // of each before the next
  const TimePoint deadline;
  size_t failed = 0;
  // Set once the one before has failed.
  std::array<Event, ResolvedServer::kMaxAddresses> turns{};
};

Task<std::optional<Connection::OpenedAddress>> Connection::OpenAny(
    const std::vector<size_t>& addresses, std::vector<absl::Status>& failures) {
  const Duration timeout = shard_.wanted_limits().connect_timeout;
  const TimePoint now = shard_.executor().FreshNow();
  AddressRace race{
      .addresses = addresses,
      .failures = failures,
      .begun = now,
      // The last one gets its share of a short connect_timeout, too.
      .head_start = std::min<Duration>(kHeadStart, timeout / static_cast<int>(addresses.size())),
      .deadline = SaturatingAdd(now, timeout)};
  if (addresses.size() == 1) co_return co_await OpenInTurn(race, 0);
  std::vector<Task<std::optional<OpenedAddress>>> tries;
  tries.reserve(addresses.size());
  for (size_t place = 0; place < addresses.size(); ++place) {
    tries.push_back(OpenInTurn(race, place));
  }
  co_return (co_await WhenAny(std::move(tries))).result;
}

Task<std::optional<Connection::OpenedAddress>> Connection::OpenInTurn(AddressRace& race,
                                                                      size_t place) {
  if (place > 0) {
    const TimePoint latest = SaturatingAdd(race.begun, race.head_start * static_cast<int>(place));
    const absl::Status turn = co_await WithDeadline(WaitFor(race.turns[place]), latest);
    if (absl::IsCancelled(turn)) co_return std::nullopt;
  }
  const size_t address = race.addresses[place];
  absl::StatusOr<std::unique_ptr<MessageStream>> stream =
      co_await WithDeadline(shard_.bootstrap().Connect(AddressAt(address)), race.deadline);
  if (stream.ok()) {
    co_return OpenedAddress{.address = address, .begun = race.begun, .stream = *std::move(stream)};
  }
  // Another one has won. This one has not failed, and may be tried again.
  const bool lost = race.addresses.size() > 1 && (co_await CurrentContext()).cancel->requested();
  if (lost) co_return std::nullopt;
  race.failures[address] = Explained(address, stream.status(), race.begun);
  if (place + 1 < race.addresses.size()) race.turns[place + 1].Set();
  // The first to return ends the race: that is the last one to fail.
  if (++race.failed < race.addresses.size()) (void)co_await SleepUntil(kNever);
  co_return std::nullopt;
}

absl::Status Connection::TogetherOf(const std::vector<absl::Status>& failures) {
  if (failures.size() == 1) return failures.front();
  absl::StatusCode code = absl::StatusCode::kCancelled;
  bool unavailable = false;
  std::string all;
  for (const absl::Status& each : failures) {
    if (each.ok()) continue;
    if (!absl::IsCancelled(each)) code = each.code();
    unavailable |= absl::IsUnavailable(each);
    all += fmt::format("{}{}", all.empty() ? "" : "; ", std::string(each.message()));
  }
  if (all.empty()) return CancelStatus(code);
  return absl::Status(unavailable ? absl::StatusCode::kUnavailable : code, all);
}

Task<absl::Status> Connection::TryDevices(size_t address, std::unique_ptr<MessageStream> stream) {
  DeviceAttempts attempts(shard_, *stream, AddressAt(address));
  const std::vector<size_t>& order = attempts.order();
  for (size_t i = 0; i < order.size(); ++i) {
    // A stream serves one attempt.
    if (i > 0) {
      VERBENA_CO_ASSIGN_OR_RETURN(stream, co_await OpenStream(AddressAt(address)));
    }
    const Way way{.address = address, .device = order[i], .first = attempts.first()};
    absl::StatusOr<std::unique_ptr<ClientSession>> opened = co_await OpenLink(
        way, order.size() == 1, attempts.ProofTime(i), std::exchange(stream, nullptr));
    if (opened.ok()) {
      if (Take(*std::move(opened), way)) attempts.NoteChoice(i);
      co_return absl::OkStatus();
    }
    if (!MayGoOverAnotherDevice(opened.status())) co_return opened.status();
    attempts.AddFailure(i, opened.status());
  }
  co_return attempts.Failure();
}

VERBENA_CORO_WRAPPER Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connection::OpenStream(
    const std::string& address) {
  return WithDeadline(
      shard_.bootstrap().Connect(address),
      SaturatingAdd(shard_.executor().FreshNow(), shard_.wanted_limits().connect_timeout));
}

Task<absl::StatusOr<std::unique_ptr<ClientSession>>> Connection::OpenLink(
    Way way, bool only, Duration proof_time, std::unique_ptr<MessageStream> stream) {
  absl::StatusOr<Endpoint*> endpoint = co_await shard_.AwaitEndpointOn(way.device);
  if (!endpoint.ok()) {
    // Another device may have what this one lacks, RESOURCE_EXHAUSTED or not.
    const absl::Status& why = endpoint.status();
    if (only || absl::IsUnavailable(why)) co_return why;
    co_return absl::FailedPreconditionError(std::string(endpoint.status().message()));
  }
  [[maybe_unused]] const auto use = (*endpoint)->Use();
  auto session =
      std::make_unique<ClientSession>(static_cast<ClientSession::Listener&>(*this), stream_share_);
  session->set_landing_quota(landing_quota_);
  VERBENA_CO_ASSIGN_OR_RETURN(
      Link * link, co_await (*endpoint)->Connect(std::move(stream), *session, wish_, proof_time));
  session->Attach(*link);
  VERBENA_LOG_LINE(
      kClient, kInfo,
      fmt::format("connected to {} over {} (QPN {:#x})", target_, (*endpoint)->device_name(),
                  link->qpn()),
      {{"target", target_}, {"device", (*endpoint)->device_name()}, {"link", link->qpn()}});
  co_return session;
}

bool Connection::Take(std::unique_ptr<ClientSession> session, Way way) {
  // An attempt to connect and the search for the first device may end side by side.
  if (usable_session() != nullptr && !temporary()) {
    session->CloseLink(absl::CancelledError("calls go over another link, made at the same time"));
    return false;
  }
  ClientSession* const former = current_.get();
  if (former != nullptr) SetAside();
  current_ = std::move(session);
  current_->set_tally(tally_.get());
  opened_ = shard_.executor().now();
  way_ = way;
  passed_over_ =
      !DeviceScores::Of(shard_).WhyPassedOver(AddressAt(way.address), way.device).empty();
  last_error_ = absl::OkStatus();
  next_attempt_ = {};
  TellListeners();
  if (former != nullptr && !former->down()) former->Drain();
  if (!temporary() || returning_ || closed_) return true;
  returning_ = true;
  static thread_local ThrottledLog log(LogComponent::kClient,
                                       {.lines = 4, .interval = std::chrono::seconds(10)});
  VERBENA_LOG_THROTTLED(
      log, kWarning, opened_,
      fmt::format("the link to {} goes over {} for a time, since {} is passed over; that one "
                  "is tried beside it from time to time",
                  target_, DeviceName(way.device), DeviceName(way.first)),
      {{"target", target_}, {"device", DeviceName(way.device)}});
  shard_.tasks().Spawn(ReturnToFirst());
  return true;
}

std::string Connection::DeviceName(size_t device) const { return shard_.devices()[device]->name(); }

Task<void> Connection::ReturnToFirst() {
  return_.emplace((co_await CurrentContext()).cancel);
  const absl::Cleanup end = [this] {
    return_.reset();
    returning_ = false;
  };
  co_await TryFirstAgain().In(&*return_);
}

// Ends once the current link goes over the first device, or is lost: the next attempt to connect
// begins with the first device, or makes a link that starts this again.
Task<void> Connection::TryFirstAgain() {
  while (!closed_ && temporary()) {
    const bool prompt = ++returns_tried_ < kPromptReturns;
    if (!(co_await Sleep(return_backoff_.Next())).ok()) co_return;
    if (prompt) return_backoff_.Reset();
    if (closed_ || !temporary()) co_return;
    std::erase_if(retired_, [](const auto& session) { return session->down(); });
    const absl::Status tried = co_await Caught(TryFirst());
    if (tried.ok() || closed_ || shard_.closing()) co_return;
    static thread_local ThrottledLog log(LogComponent::kClient,
                                         {.lines = 4, .interval = std::chrono::seconds(10)});
    VERBENA_LOG_THROTTLED(
        log, kInfo, shard_.executor().now(),
        fmt::format("{} is still passed over on the way to {}: {}", DeviceName(way_.first), target_,
                    std::string(tried.message())),
        {{"target", target_}, {"device", DeviceName(way_.first)}});
  }
}

Task<absl::Status> Connection::TryFirst() {
  const Way way{.address = way_.address, .device = way_.first, .first = way_.first};
  const std::string& address = AddressAt(way.address);
  VERBENA_CO_ASSIGN_OR_RETURN(std::unique_ptr<MessageStream> stream, co_await OpenStream(address));
  VERBENA_CO_ASSIGN_OR_RETURN(
      std::unique_ptr<ClientSession> session,
      co_await OpenLink(way, /*only=*/false, kProofTime, std::move(stream)));
  if (closed_ || shard_.closing()) {
    session->CloseLink(absl::CancelledError("no channel uses the link any more"));
    co_return Unused();
  }
  DeviceScores::Of(shard_).NoteReturn(address, way.device, shard_.executor().now());
  shard_.devices()[way.device]->NotePassedOver("");
  VERBENA_LOG_LINE(kClient, kInfo,
                   fmt::format("new calls to {} go over {} again", target_, DeviceName(way.device)),
                   {{"target", target_}, {"device", DeviceName(way.device)}});
  Take(std::move(session), way);
  co_return absl::OkStatus();
}

void Connection::OnSessionDown(ClientSession& session, const absl::Status& reason) {
  late_responses_ += session.stats().late_responses;
  if (current_.get() != &session) return;
  if (session.broken() && !session.answered()) NoteBroken(reason);
  if (!WasOfUse() && ++useless_links_ > 1) {
    last_error_ = absl::UnavailableError(
        fmt::format("{} loses each link before it answers a call, {} by now, the last one by: {}",
                    target_, useless_links_, std::string(reason.message())));
    PutOffNextAttempt();
  }
  Retire();
}

// Shared memory proves nothing when it opens, and has no path that could break.
void Connection::NoteBroken(const absl::Status& reason) {
  if (shard_.kinds()[way_.device] == LinkKind::kSoft) return;
  DeviceScores& scores = DeviceScores::Of(shard_);
  const std::string& address = AddressAt(way_.address);
  if (!scores.NoteLoss(address, way_.device, reason, shard_.executor().now())) return;
  VERBENA_LOG_LINE(
      kClient, kWarning,
      fmt::format("links to {} go over {} only if no other device reaches it: {}", address,
                  DeviceName(way_.device), scores.WhyPassedOver(address, way_.device)),
      {{"target", address}, {"device", DeviceName(way_.device)}});
}

void Connection::OnSessionDraining(ClientSession& session) {
  if (current_.get() == &session) {
    if (!closed_ && !WasOfUse()) {
      last_error_ = SaidGoAway();
      PutOffNextAttempt();
    }
    Retire();
  }
  if (session.idle()) {
    OnSessionIdle(session);
  } else {
    CloseOldestDraining();
  }
}

absl::Status Connection::SaidGoAway() const {
  return absl::UnavailableError(
      fmt::format("{} accepted a link, and said GOAWAY before it answered a call: it is shutting "
                  "down; try again",
                  target_));
}

bool Connection::WasOfUse() const {
  return current_->answered() || shard_.executor().now() - opened_ >= kLastingLink;
}

void Connection::Retire() {
  if (!temporary() && shard_.executor().now() - opened_ >= DeviceScores::kWithin) {
    return_backoff_.Reset();
    returns_tried_ = 0;
  }
  SetAside();
  TellListeners();
}

void Connection::SetAside() {
  if (WasOfUse()) {
    backoff_.Reset();
    useless_links_ = 0;
    failures_ = 0;
  }
  if (passed_over_ && current_->answered()) {
    DeviceScores::Of(shard_).NoteReturn(AddressAt(way_.address), way_.device,
                                        shard_.executor().now());
  }
  retired_.push_back(std::move(current_));
}

void Connection::PutOffNextAttempt() {
  ++failures_;
  next_attempt_ = SaturatingAdd(shard_.executor().now(), PauseAfter(last_error_));
}

// A server may name any wait, and go on doing so, but each attempt makes a queue pair.
Duration Connection::PauseAfter(const absl::Status& failure) {
  const Duration pause = backoff_.Next();
  const std::optional<Duration> wait = ReadRetryAfter(failure);
  return wait.has_value() ? std::max(pause, LaterThan(*wait)) : pause;
}

void Connection::CloseOldestDraining() {
  Link* oldest = nullptr;
  size_t draining = 0;
  for (const std::unique_ptr<ClientSession>& session : retired_) {
    Link* link = session->link();
    if (link == nullptr || !link->open()) continue;
    if (draining++ == 0) oldest = link;
  }
  if (draining <= kMaxDraining) return;
  oldest->Close(absl::UnavailableError(fmt::format(
      "{} links to {} have calls left and take no new ones, since it said GOAWAY, or new calls go "
      "over another device; the one that drained longest is closed, since at most {} drain at once",
      draining, target_, kMaxDraining)));
}

void Connection::OnSessionIdle(ClientSession& session) {
  VERBENA_CHECK(!session.down()) << target_;
  if (closed_) {
    return session.CloseLink(absl::CancelledError("no channel uses the link any more"));
  }
  const bool is_made = std::ranges::none_of(
      retired_, [&session](const auto& retired) { return retired.get() == &session; });
  // The link has yet to prove itself, and its attempt ends with these words.
  if (is_made) return session.CloseLink(SaidGoAway());
  session.CloseLink(
      absl::UnavailableError("the link has drained: the server is shutting down, or new calls go "
                             "over another device"));
}

uint64_t Connection::late_responses() const {
  return late_responses_ + (current_ != nullptr ? current_->stats().late_responses : 0);
}

absl::Status NotOnAnExecutor() {
  return WithOutcome(absl::FailedPreconditionError(
                         "a Channel was used on a thread that runs no executor of its runtime; use "
                         "Runtime::BlockOn(task) or Runtime::Spawn(task)"),
                     Outcome::kNotExecuted);
}

DeviceAttempts::DeviceAttempts(Shard& shard, const MessageStream& stream,
                               const std::string& address)
    : shard_(shard),
      address_(address),
      same_host_(stream.same_host()),
      order_(ConnectOrder(shard.kinds(), stream.same_host())) {
  std::erase_if(order_, [&](size_t device) { return !shard.MayConnectOver(device, stream); });
  if (!order_.empty()) first_ = order_.front();
  std::vector<size_t> last;
  for (const size_t device : order_) {
    if (!DeviceScores::Of(shard).WhyPassedOver(address, device).empty()) last.push_back(device);
  }
  std::erase_if(order_, [&last](size_t device) { return IsAmong(last, device); });
  order_.insert(order_.end(), last.begin(), last.end());
}

std::string DeviceAttempts::NameOf(size_t device) const {
  return LinkKindName(shard_.kinds()[device]);
}

Duration DeviceAttempts::ProofTime(size_t i) const {
  return ProofTimeOf(i, order_, shard_.kinds(), same_host_);
}

void DeviceAttempts::AddFailure(size_t i, const absl::Status& why) {
  VERBENA_CHECK(i == failures_.size()) << "device " << i << " of " << order_.size();
  failures_.push_back(why);
  if (!absl::IsPermissionDenied(why) && !absl::IsFailedPrecondition(why)) return;
  const bool shared_memory = shard_.kinds()[order_[i]] == LinkKind::kSoft;
  // This side may have later what its device lacks now, such as memory to pin.
  if (!shared_memory && shard_.devices()[order_[i]]->endpoint() == nullptr) return;
  unfit_.push_back(order_[i]);
  if (shared_memory) {
    for (size_t device = 0; device < shard_.kinds().size(); ++device) {
      if (!IsAmong(order_, device)) order_.push_back(device);
    }
  }
  const std::vector<size_t> all = ConnectOrder(shard_.kinds(), same_host_);
  const auto next =
      std::ranges::find_if(all, [this](size_t device) { return !IsAmong(unfit_, device); });
  if (next != all.end()) first_ = *next;
}

absl::Status DeviceAttempts::Failure() const {
  VERBENA_CHECK(!failures_.empty()) << address_;
  if (order_.size() == 1) return failures_.front();
  std::string all;
  for (size_t i = 0; i < failures_.size(); ++i) {
    all += fmt::format("{}{}: {}", i == 0 ? "" : "; ", NameOf(order_[i]),
                       std::string(failures_[i].message()));
  }
  // A device that is down may be back soon, so its UNAVAILABLE outweighs the errors of the others.
  const bool unavailable = std::ranges::any_of(failures_, absl::IsUnavailable);
  return absl::Status(unavailable ? absl::StatusCode::kUnavailable : failures_.back().code(),
                      fmt::format("no device reaches {}: {}", address_, all));
}

std::string DeviceAttempts::WhyNot(size_t other, size_t chosen) const {
  if (other < chosen) return std::string(failures_[other].message());
  const std::string why = DeviceScores::Of(shard_).WhyPassedOver(address_, order_[other]);
  return why.empty() ? fmt::format("{} comes before it", NameOf(order_[chosen])) : why;
}

void DeviceAttempts::NoteChoice(size_t i) const {
  const std::string chosen = NameOf(order_[i]);
  std::string passed_over;
  for (size_t other = 0; other < order_.size(); ++other) {
    if (other == i) continue;
    const std::string why = WhyNot(other, i);
    shard_.devices()[order_[other]]->NotePassedOver(fmt::format("{}: {}", address_, why));
    passed_over += fmt::format("; {} is not used: {}", NameOf(order_[other]), why);
  }
  ShardDevice& device = *shard_.devices()[order_[i]];
  if (!device.NoteFirstLink()) return;
  VERBENA_LOG_LINE(
      kClient, kInfo,
      fmt::format("{} carries its first link over {}, to {}, {}{}", device.name(), chosen, address_,
                  same_host_ ? "on this host" : "on another host", passed_over),
      {{"target", address_}, {"device", device.name()}});
}

}  // namespace verbena::internal
