#include "verbena/transport/link/endpoint.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/executor/join_logged.h"
#include "verbena/transport/link/wr_id.h"
#include "verbena/transport/log/check.h"
#include "verbena/transport/log/log.h"
#include "verbena/transport/log/mutant.h"

namespace verbena::internal {
namespace {

// Each takes ten microseconds or so, for which the completions of other links wait. (start)
constexpr size_t kTeardownStepsPerTurn = 8;
// Slots and links that a liveness check looks at before others have their turn. (start)
constexpr int kChecksPerTurn = 512;

// The soft device's processor copies slices as they are posted.
uint32_t BulkBytesPerTurn(const Device& device, const LinkLimits& limits) {
  const bool copies = device.kind() == DeviceKind::kSoft && !VERBENA_MUTANT(kBulkTurnUnbounded);
  return copies ? limits.bulk.slice_bytes : UINT32_MAX;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::Create(
    Executor& executor, DeviceContext& context, const LinkLimits& wanted, uint32_t executor_index,
    uint32_t executor_count, const RuntimeId& id) {
  absl::StatusOr<EndpointMemory> memory = Register(context, wanted);
  if (!memory.ok()) return memory.status();
  return CreateWith(*std::move(memory), executor, context, wanted, executor_index, executor_count,
                    id);
}

absl::StatusOr<EndpointMemory> Endpoint::Register(DeviceContext& context,
                                                  const LinkLimits& wanted) {
  Device& device = context.device();
  absl::StatusOr<LinkLimits> limits = DeriveLimits(wanted, device);
  if (!limits.ok()) return limits.status();
  EndpointMemory memory;
  absl::StatusOr<std::unique_ptr<ReceiveRing>> receives =
      ReceiveRing::Create(device, context.pd(), limits->srq_depth,
                          LostReceives::Spares(*limits, device), limits->eager_bytes);
  if (!receives.ok()) return receives.status();
  memory.receives = *std::move(receives);
  absl::StatusOr<std::unique_ptr<SendBuffers>> buffers = SendBuffers::Create(
      device, context.pd(), limits->send_buffers, limits->eager_bytes, limits->max_links);
  if (!buffers.ok()) return buffers.status();
  memory.send_buffers = *std::move(buffers);
  absl::StatusOr<AtomicScratch> scratch =
      AtomicScratch::Create(device, context.pd(), limits->max_links);
  if (!scratch.ok()) return scratch.status();
  memory.atomic_scratch = *std::move(scratch);
  return memory;
}

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::CreateWith(
    EndpointMemory memory, Executor& executor, DeviceContext& context, const LinkLimits& wanted,
    uint32_t executor_index, uint32_t executor_count, const RuntimeId& id) {
  absl::StatusOr<LinkLimits> limits = DeriveLimits(wanted, context.device());
  if (!limits.ok()) return limits.status();
  std::unique_ptr<Endpoint> endpoint(
      new Endpoint(executor, context, *limits, executor_index, executor_count, id));
  if (absl::Status status = endpoint->Init(std::move(memory)); !status.ok()) return status;
  return endpoint;
}

Endpoint::Endpoint(Executor& executor, DeviceContext& context, const LinkLimits& limits,
                   uint32_t executor_index, uint32_t executor_count, const RuntimeId& id)
    : executor_(executor),
      context_(context),
      limits_(limits),
      executor_index_(executor_index),
      executor_count_(executor_count),
      runtime_id_(id),
      max_inline_bytes_(
          std::min(context.device().capabilities().max_inline_bytes, limits.eager_bytes)),
      spare_receives_(LostReceives::Spares(limits, context.device())),
      credit_pool_(limits.srq_depth - kRepostBatch -
                   limits.max_links * (limits.initial_credits + kReserveCredits)),
      links_(limits.max_links),
      lost_receives_(context.device(), links_),
      bulk_(BulkBytesPerTurn(context.device(), limits)),
      teardown_pacer_(executor, kTeardownStepsPerTurn),
      gate_(std::make_shared<ExecutorGate>(executor)),
      tasks_(executor),
      holds_(executor) {}

absl::Status Endpoint::Init(EndpointMemory registered) {
  receives_ = std::move(registered.receives);
  lost_receives_.Follow(*receives_);
  send_buffers_ = std::move(registered.send_buffers);
  send_room_.emplace(*send_buffers_);
  atomic_scratch_ = std::move(registered.atomic_scratch);
  send_chain_.emplace(limits_.send_queue_depth, send_buffers_->lkey());
  absl::StatusOr<ibv_cq*> cq =
      executor_.AddCq(context_.device(),
                      static_cast<int>(CompletionQueueEntries(limits_) + spare_receives_), *this);
  if (!cq.ok()) return cq.status();
  cq_ = *cq;
  absl::StatusOr<PayloadMemory> memory = PayloadMemory::Create(executor_, context_, limits_);
  if (!memory.ok()) return memory.status();
  memory_.emplace(*std::move(memory));
  SubscribeQueues();
  return absl::OkStatus();
}

Endpoint::~Endpoint() {
  VERBENA_CHECK(stats_.links == 0) << stats_.links << " links are left: Shutdown() has not ended";
  if (!VERBENA_MUTANT(kGateStaysOpen)) gate_->Close();
  executor_.StopTimer(*this);
  if (cq_ != nullptr) UnsubscribeQueues();
  receives_.reset();
  if (cq_ == nullptr) return;
  if (absl::Status status = executor_.RemoveCq(cq_); !status.ok()) {
    Log(LogLevel::kError,
        fmt::format("a completion queue was not destroyed: {}", status.ToString()));
  }
}

// --- completions

void Endpoint::OnCompletions(const ibv_wc* completions, int count) {
  one_completion_ = count == 1;
  for (int i = 0; i < count; ++i) {
    completions_left_ = count - 1 - i;
    const WrId id = WrId::Unpack(completions[i].wr_id);
    if (id.kind == WrId::Kind::kReceive) {
      OnReceive(completions[i], id.slot);
    } else {
      OnSendDone(completions[i], id);
    }
  }
  if (receives_->needs_post()) ScheduleFlush();
}

void Endpoint::OnReceive(const ibv_wc& completion, uint32_t buffer) {
  if (!receives_->OnCompletion(buffer)) {
    ++stats_.stale_completions;
    return;
  }
  Link* link = links_.FindQpn(completion.qp_num);
  if (link == nullptr || completion.status != IBV_WC_SUCCESS) {
    // A receive that a dying queue pair took from the shared queue: only its buffer is wanted back.
    if (link == nullptr) ++stats_.stale_completions;
  } else if (link->open()) {
    const bool invalidates = (completion.wc_flags & IBV_WC_WITH_INV) != 0;
    link->OnSend(receives_->data(buffer), completion.byte_len,
                 invalidates ? completion.invalidated_rkey : 0);
  }
  receives_->Release(buffer);
  if (receives_->in_doubt()) [[unlikely]] {
    lost_receives_.OnReceive(completion.qp_num);
    SettleReceives();
  }
}

void Endpoint::OnSendDone(const ibv_wc& completion, const WrId& id) {
  Link* link = Find({id.slot, id.generation});
  if (link == nullptr) {
    ++stats_.stale_completions;
    return;
  }
  link->OnSendCompletion(completion, id.position);
}

Link* Endpoint::OpenLink(LinkKey key) {
  Link* link = Find(key);
  return link != nullptr && link->open() ? link : nullptr;
}

bool Endpoint::PostReceives() {
  if (receives_->Post().ok()) return true;
  // The flush finds the same, and may close links.
  ScheduleFlush();
  return false;
}

void Endpoint::Flush() {
  if (absl::Status status = receives_->Post(); !status.ok()) {
    Log(LogLevel::kError, fmt::format("all links close: {}", status.ToString()));
    CloseAll(status);
  }
}

// --- credits and buffers

void Endpoint::UpdateReceiveTarget() {
  const uint32_t own = stats_.links * (limits_.initial_credits + kReserveCredits);
  receives_->set_needed(own + credit_pool_.borrowed());
  if (receives_->needs_post()) ScheduleFlush();
}

void Endpoint::GrowWindow(Link& link) {
  // A link that may borrow no more takes nothing from others.
  if (link.issued().recalled() || link.issued().at_maximum()) return;
  const PeerSource& source = link.source();
  const bool is_shared = source.bounded && sources_.size() > 1;
  if (link.GrowWindow(is_shared) > 0) {
    BorrowingLink& borrowing = link;
    if (!borrowing.linked()) borrowing_.PushBack(borrowing);
    UpdateReceiveTarget();
    return;
  }
  // Links that were quiet since the last liveness check give first, those that were asked longest
  // ago before others. Their answers make the credits free for the next who starves. Links to
  // another address that has fewer give nothing.
  int asked = 0;
  Link* busy = nullptr;
  for (int i = 0; i < kRecallCandidates && asked < kRecallsAtOnce; ++i) {
    BorrowingLink* borrowing = borrowing_.PopFront();
    if (borrowing == nullptr) break;
    Link* candidate = static_cast<Link*>(borrowing);
    if (!candidate->open() || candidate->issued().surplus() == 0) continue;
    const bool has_less = is_shared && &candidate->source() != &source &&
                          candidate->source().credits.borrowed < source.credits.borrowed;
    if (candidate == &link || has_less || candidate->heard()) {
      borrowing_.PushBack(*borrowing);
      if (candidate != &link && !has_less && busy == nullptr) busy = candidate;
      continue;
    }
    candidate->Recall();
    ++asked;
  }
  if (asked > 0 || busy == nullptr) return;
  busy->BorrowingLink::Unlink();
  busy->Recall();
}

void Endpoint::NoteRecallAnswered(Link& link) {
  BorrowingLink& borrowing = link;
  if (link.issued().surplus() > 0 && !borrowing.linked()) borrowing_.PushBack(borrowing);
}

PeerSource& Endpoint::JoinSource(const MessageStream& stream) {
  std::unique_ptr<PeerSource>& source = sources_[std::pair(stream.source(), stream.names_source())];
  if (source == nullptr) {
    source = std::make_unique<PeerSource>(stream.source(), stream.names_source());
  }
  ++source->links;
  send_buffers_->ShareAmong(sources_.size());
  return *source;
}

void Endpoint::LeaveSource(PeerSource& source) {
  NoteSendRoom(source);
  if (--source.links > 0) return;
  sources_.erase(std::pair(source.name, source.bounded));
  send_buffers_->ShareAmong(sources_.size());
  // A source that is left alone may hold more than before.
  if (sources_.size() == 1) NoteSendRoom(*sources_.begin()->second);
}

void Endpoint::SettleReceives() {
  const TimePoint now = executor_.now();
  stats_.receives_lost += lost_receives_.Settle(now);
  if (lost_receives_.WantsNewQueues(now, !shutting_down_ && broken_.ok())) {
    LoseQueues("the device may have dropped too many receives");
  }
  if (receives_->needs_post()) ScheduleFlush();
}

// --- liveness

// Teardown waits for this, so the link outlives it.
Task<void> Endpoint::WatchStream(Link& link) {
  absl::Status end;
  try {
    const bool received = (co_await link.qp().stream().Receive()).ok();
    end =
        received
            ? absl::InvalidArgumentError(
                  fmt::format("{} sent a bootstrap message on an open link", link.peer()))
            : absl::UnavailableError(fmt::format("{} closed the connection or died", link.peer()));
  } catch (const std::exception& error) {
    // The stream may be the program's.
    if (VERBENA_MUTANT(kWatchExceptionEscapes)) throw;
    end = absl::InternalError(
        fmt::format("the bootstrap connection of {} threw: {}", link.peer(), error.what()));
  } catch (...) {
    end = absl::InternalError(fmt::format("the bootstrap connection of {} threw", link.peer()));
  }
  (void)co_await teardown_pacer_.Pass();
  link.qp().stream().EndReading();
  link.Close(end);
}

void Endpoint::StartLivenessTimer() {
  if (timer_running_) return;
  timer_running_ = true;
  executor_.StartTimer(*this, SaturatingAdd(executor_.now(), limits_.ping_interval / 2));
}

void Endpoint::OnTimer() {
  timer_running_ = false;
  if (!checking_) {
    context_.PollEventsIfUnattended();
    unchecked_.Append(watched_);
    unchecked_slot_ = 0;
  }
  checking_ = !CheckSome();
  if (checking_) {
    timer_running_ = true;
    executor_.StartTimer(*this, executor_.now());
  } else if (stats_.links > 0) {
    StartLivenessTimer();
  }
}

// False when the rest is for the next turn: a host that vanishes takes a thousand links along.
bool Endpoint::CheckSome() {
  const TimePoint now = executor_.now();
  int left = kChecksPerTurn;
  // Each link that is closed begins its teardown.
  const size_t most_tasks = tasks_.size() + kTeardownStepsPerTurn;
  const auto may_go_on = [&] { return left-- > 0 && tasks_.size() < most_tasks; };
  while (!unchecked_.empty()) {
    if (!may_go_on()) return false;
    WatchedLink* watched = unchecked_.PopFront();
    // A link that this closes may be gone afterwards.
    Link* link = static_cast<Link*>(watched);
    if (link->CheckLiveness(now) && !watched->linked()) watched_.PushBack(*watched);
  }
  for (; unchecked_slot_ < links_.slots().size(); ++unchecked_slot_) {
    if (!may_go_on()) return false;
    LinkSlot& slot = links_.slots()[unchecked_slot_];
    if (slot.link == nullptr) continue;
    slot.link->CheckIdle(now);
    lost_receives_.Check(slot);
  }
  return true;
}

Task<void> Endpoint::Shutdown() {
  shutting_down_ = true;
  CloseAll(absl::UnavailableError("the endpoint shuts down"));
  co_await JoinLogged(tasks_, fmt::format("the endpoint on {}", device_name()));
  co_await AwaitMaking();
  holds_.RequestCancel();
  co_await JoinLogged(holds_, fmt::format("the endpoint on {}", device_name()));
  executor_.StopTimer(*this);
  timer_running_ = false;
}

size_t Endpoint::leases() const {
  size_t count = 0;
  for (const LinkSlot& slot : links_.slots()) {
    if (slot.link != nullptr) count += slot.link->leases().count();
  }
  return count;
}

EndpointStats Endpoint::stats() const {
  EndpointStats stats = stats_;
  stats.receives_posted = receives_->posted();
  stats.credits_borrowed = credit_pool_.borrowed();
  stats.traffic = closed_traffic_;
  for (const LinkSlot& slot : links_.slots()) {
    if (slot.link != nullptr) stats.traffic += slot.link->stats();
  }
  return stats;
}

}  // namespace verbena::internal
