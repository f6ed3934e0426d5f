#include "verbena/transport/link/endpoint.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/log/check.h"
#include "verbena/transport/log/log.h"
#include "verbena/transport/log/mutant.h"

namespace verbena {
namespace {

// How often a device is asked whether a lost link's peer has left our memory.
constexpr Duration kQuiescePoll = std::chrono::milliseconds(10);
// Each takes ten microseconds or so, for which the completions of other links wait. (start)
constexpr size_t kTeardownStepsPerTurn = 8;
// Slots and links that a liveness check looks at before others have their turn. (start)
constexpr int kChecksPerTurn = 512;

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
  absl::StatusOr<std::unique_ptr<ReceiveRing>> receives = ReceiveRing::Create(
      device, context.pd(), limits->srq_depth, SpareReceives(*limits, device), limits->eager_bytes);
  if (!receives.ok()) return receives.status();
  memory.receives = *std::move(receives);
  absl::StatusOr<std::unique_ptr<SendBuffers>> buffers = SendBuffers::Create(
      device, context.pd(), limits->send_buffers, limits->eager_bytes, limits->max_links);
  if (!buffers.ok()) return buffers.status();
  memory.send_buffers = *std::move(buffers);
  absl::StatusOr<AtomicLandings> landings =
      AtomicLandings::Create(device, context.pd(), limits->max_links);
  if (!landings.ok()) return landings.status();
  memory.atomic_landings = *std::move(landings);
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
      bulk_bytes_per_turn_(context.device().kind() == DeviceKind::kSoft &&
                                   !VERBENA_MUTANT(kBulkTurnUnbounded)
                               ? limits.bulk.slice_bytes
                               : UINT32_MAX),
      spare_receives_(SpareReceives(limits, context.device())),
      credit_pool_(limits.srq_depth - kRepostBatch -
                   limits.max_links * (limits.initial_credits + kReserveCredits)),
      slots_(limits.max_links),
      teardown_pacer_(executor, kTeardownStepsPerTurn),
      gate_(std::make_shared<ExecutorGate>(executor)),
      tasks_(executor),
      holds_(executor) {
  for (uint32_t slot = 0; slot < limits.max_links; ++slot) free_slots_.push_back(slot);
}

absl::Status Endpoint::Init(EndpointMemory registered) {
  receives_ = std::move(registered.receives);
  send_buffers_ = std::move(registered.send_buffers);
  send_room_.emplace(*send_buffers_);
  atomic_landings_ = std::move(registered.atomic_landings);
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
  Link* link = last_receiver_;
  if (link == nullptr || link->qpn() != completion.qp_num) {
    auto found = links_by_qpn_.find(completion.qp_num);
    link = found == links_by_qpn_.end() ? nullptr : found->second;
    last_receiver_ = link;
  }
  if (link == nullptr || completion.status != IBV_WC_SUCCESS) {
    // A receive that a dying queue pair took from the shared queue: only its buffer is wanted back.
    if (link == nullptr) ++stats_.stale_completions;
  } else if (link->open()) {
    const bool invalidates = (completion.wc_flags & IBV_WC_WITH_INV) != 0;
    link->OnSend(receives_->data(buffer), completion.byte_len,
                 invalidates ? completion.invalidated_rkey : 0);
  }
  receives_->Release(buffer);
  if (receives_->in_doubt()) [[unlikely]]
    OnReceiveInDoubt(completion.qp_num);
}

void Endpoint::OnSendDone(const ibv_wc& completion, const WrId& id) {
  Link* link = Find({id.slot, id.generation});
  if (link == nullptr) {
    ++stats_.stale_completions;
    return;
  }
  link->OnSendCompletion(completion, id.position);
}

Link* Endpoint::Find(LinkKey key) {
  if (key.slot >= slots_.size()) return nullptr;
  const Slot& found = slots_[key.slot];
  const bool current = (found.generation & WrId::kGenerationMask) == key.generation;
  if (!current && !VERBENA_MUTANT(kStaleWrIdAccepted)) return nullptr;
  return found.link.get();
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
  receives_->set_needed(own + credit_pool_.lent());
  if (receives_->needs_post()) ScheduleFlush();
}

void Endpoint::GrowWindow(Link& link) {
  // One that may be lent no more takes nothing from others.
  if (link.grants_.recalled() || link.grants_.at_maximum()) return;
  if (link.grants_.Grow() > 0) {
    LentLink& lent = link;
    if (!lent.linked()) lent_.PushBack(lent);
    UpdateReceiveTarget();
    return;
  }
  // Links that were quiet since the last liveness check give first, those that were asked longest
  // ago before others. Their answers make the credits free for the next who starves.
  int asked = 0;
  Link* busy = nullptr;
  for (int i = 0; i < kRecallCandidates && asked < kRecallsAtOnce; ++i) {
    LentLink* lent = lent_.PopFront();
    if (lent == nullptr) break;
    Link* candidate = static_cast<Link*>(lent);
    if (!candidate->open() || candidate->grants_.surplus() == 0) continue;
    if (candidate == &link || candidate->liveness_.heard()) {
      lent_.PushBack(*lent);
      if (candidate != &link && busy == nullptr) busy = candidate;
      continue;
    }
    candidate->Recall();
    ++asked;
  }
  if (asked > 0 || busy == nullptr) return;
  busy->LentLink::Unlink();
  busy->Recall();
}

void Endpoint::NoteRecallAnswered(Link& link) {
  LentLink& lent = link;
  if (link.grants_.surplus() > 0 && !lent.linked()) lent_.PushBack(lent);
}

SendSource& Endpoint::JoinSource(const MessageStream& stream) {
  std::unique_ptr<SendSource>& source = sources_[std::pair(stream.source(), stream.names_source())];
  if (source == nullptr) {
    source = std::make_unique<SendSource>(stream.source(), stream.names_source());
  }
  ++source->links;
  send_buffers_->ShareAmong(sources_.size());
  return *source;
}

void Endpoint::LeaveSource(SendSource& source) {
  NoteSendRoom(source);
  if (--source.links > 0) return;
  sources_.erase(std::pair(source.name, source.bounded));
  send_buffers_->ShareAmong(sources_.size());
  // One that is left alone may hold more than before.
  if (sources_.size() == 1) NoteSendRoom(*sources_.begin()->second);
}

// --- liveness

// Teardown waits for this, so the link outlives it.
Task<void> Endpoint::WatchStream(Link& link) {
  absl::StatusOr<std::string> message = co_await link.stream_.Receive();
  (void)co_await teardown_pacer_.Pass();
  link.stream_.EndReading();
  link.Close(message.ok() ? absl::InvalidArgumentError(fmt::format(
                                "{} sent a bootstrap message on an open link", link.peer()))
                          : absl::UnavailableError(
                                fmt::format("{} closed the connection or died", link.peer())));
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
    // One that is closed may be gone after this.
    Link* link = static_cast<Link*>(watched);
    if (link->CheckLiveness(now) && !watched->linked()) watched_.PushBack(*watched);
  }
  for (; unchecked_slot_ < slots_.size(); ++unchecked_slot_) {
    if (!may_go_on()) return false;
    Slot& slot = slots_[unchecked_slot_];
    if (slot.link == nullptr) continue;
    slot.link->CheckIdle(now);
    CheckProof(slot);
  }
  return true;
}

// --- teardown

void Endpoint::StartTeardown(Link& link, const absl::Status& reason) {
  if (!shutting_down_) {
    ++stats_.links_lost;
    Log(LogLevel::kInfo, fmt::format("link to {} (QPN {:#x}) closes: {}", link.peer(), link.qpn(),
                                     reason.ToString()));
  }
  link.RoomWaiter::Unlink();
  link.WatchedLink::Unlink();
  link.LentLink::Unlink();
  tasks_.Spawn(Teardown(link));
}

// QP to ERR → every posted WR flushes → LAST_WQE, where the device sends it → the CQ is empty →
// destroy → the CQ is empty again → forget the QPN. Each wait is bounded: some devices never flush,
// or never send the event.
Task<void> Endpoint::Teardown(Link& link) {
  link.stream_.Close();
  ibv_qp* const qp = link.qp_.get();
  absl::Status status = co_await context_.control().Finish(
      ControlKind::kTeardown, qp,
      [&device = context_.device(), qp] { return MoveQpToError(device, qp); });
  if (!status.ok()) Log(LogLevel::kWarning, status.ToString());
  co_await link.stream_.AwaitUnread();
  (void)co_await teardown_pacer_.Pass();
  const TimePoint limit = SaturatingAdd(executor_.now(), limits_.teardown_timeout);
  // A device that completes no marker in ERR (siw) flushed the posted WRs when the queue pair moved
  // there; destroying the queue pair ends the rest.
  if (link.slots_.in_flight() > 0 && context_.device().capabilities().flushes_in_error) {
    link.PostDrainMarker();
    status = co_await WithDeadline(WaitFor(link.drained_), limit);
    if (!status.ok()) {
      Log(LogLevel::kWarning, fmt::format("QPN {:#x}: {} of the posted WRs did not flush in time",
                                          link.qpn(), link.slots_.in_flight()));
    }
  }
  if (context_.device().capabilities().last_wqe_event) {
    context_.PollEventsIfUnattended();
    // Early, late or never: when it does not come, polling the CQ empty around the destruction is
    // all there is.
    (void)co_await WithDeadline(WaitFor(link.last_wqe_), limit);
  }
  co_await FreeLink(link);
}

Task<absl::Status> Endpoint::WaitFor(Event& event) { co_return co_await event.Wait(); }

// Ordered by the queue pair, so that none is on its way when it is destroyed.
void Endpoint::StartRefill(Link& link, uint32_t count) {
  tasks_.Spawn(Refill(link.key(), link.qp_.get(), count, link.leases_.TakeWorn()));
}

Task<void> Endpoint::Refill(LinkKey key, const void* order, uint32_t count,
                            std::vector<MwHandle> worn) {
  absl::StatusOr<WindowBatch> batch = co_await context_.control().Finish(
      ControlKind::kConnect, order,
      [this, count, worn = std::move(worn)]() mutable -> absl::StatusOr<WindowBatch> {
        worn.clear();
        return AllocateWindows(context_.device(), context_.pd(), count);
      });
  Link* link = Find(key);
  if (link != nullptr && link->open()) {
    link->leases_.Refill(*std::move(batch));
    link->WakeLeaseWaiters();
    co_return;
  }
  (void)co_await context_.control().Finish(ControlKind::kTeardown, order,
                                           [batch = *std::move(batch)]() mutable {
                                             batch.windows.clear();
                                             return absl::OkStatus();
                                           });
}

// A control thread destroys what the device has of the link, windows before their queue pair: the
// other way round takes some devices a minute (rxe 6.1).
Task<void> Endpoint::FreeLink(Link& link) {
  (void)co_await teardown_pacer_.Pass();
  // Before the queue is emptied: nothing that comes later is of this queue pair.
  const bool told_of_last = link.last_wqe_.is_set();
  executor_.DrainCq(cq_);
  const uint32_t qpn = link.qpn();
  const QpIdentity identity = context_.device().IdentityOf(link.qp_.get());
  const uint32_t index = link.key().slot;
  context_.Unsubscribe(qpn);
  auto [windows, leased] = link.leases_.TakeAll();
  if (VERBENA_MUTANT(kWindowsFreedOnExecutor)) windows.clear();
  const void* const order = link.qp_.get();
  (void)co_await context_.control().Finish(
      ControlKind::kTeardown, order,
      [windows = std::move(windows), qp = std::move(link.qp_)]() mutable {
        windows.clear();
        qp.Reset();
        return absl::OkStatus();
      });
  link.state_ = LinkState::kClosed;
  executor_.DrainCq(cq_);
  link.one_sided_.Fail(absl::UnavailableError("the link was lost"));
  Hold(identity, qpn, std::move(leased));
  // Unless the device has given its number to another.
  auto found = links_by_qpn_.find(qpn);
  if (found != links_by_qpn_.end() && found->second == &link) links_by_qpn_.erase(found);
  if (last_receiver_ == &link) last_receiver_ = nullptr;
  closed_traffic_ += link.stats();
  link.slots_.ReleaseAll([this](uint32_t buffer) { send_buffers_->GiveBack(buffer); });
  SendSource& source = link.source_;
  link.CountReleased(link.held_);
  // The QP is gone, so nothing can reach this slot any more but completions of its old generation.
  --stats_.links;
  AccountForReceives(slots_[index], told_of_last, identity);
  slots_[index].link.reset();
  ++slots_[index].generation;
  free_slots_.push_back(index);
  UpdateReceiveTarget();
  SettleDoubt();
  LeaveSource(source);
}

// The queue pair is gone, but what its peer began before may still be on its way into memory that
// it was lent.
void Endpoint::Hold(QpIdentity qp, uint32_t qpn, std::vector<BufferPin> leased) {
  if (leased.empty() || context_.device().Quiesced(qp)) return;
  Log(LogLevel::kWarning, fmt::format("{} pieces of memory that the peer of QPN {:#x} was lent are "
                                      "kept back: it is in the middle of a write",
                                      leased.size(), qpn));
  holds_.Spawn(HoldUntilQuiesced(qp, std::move(leased)));
}

Task<void> Endpoint::HoldUntilQuiesced(QpIdentity qp, std::vector<BufferPin> leased) {
  while (!context_.device().Quiesced(qp)) {
    if ((co_await Sleep(kQuiescePoll)).ok()) continue;
    // The endpoint shuts down, and that peer still does not move: the memory is never used again.
    static auto* const kept = new std::vector<std::vector<BufferPin>>;
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    kept->push_back(std::move(leased));
    co_return;
  }
}

Task<void> Endpoint::Shutdown() {
  shutting_down_ = true;
  CloseAll(absl::UnavailableError("the endpoint shuts down"));
  co_await tasks_.Join();
  co_await AwaitMaking();
  holds_.RequestCancel();
  co_await holds_.Join();
  executor_.StopTimer(*this);
  timer_running_ = false;
}

size_t Endpoint::leases() const {
  size_t count = 0;
  for (const Slot& slot : slots_) {
    if (slot.link != nullptr) count += slot.link->leases().granted();
  }
  return count;
}

EndpointStats Endpoint::stats() const {
  EndpointStats stats = stats_;
  stats.receives_posted = receives_->posted();
  stats.credits_lent = credit_pool_.lent();
  stats.traffic = closed_traffic_;
  for (const Slot& slot : slots_) {
    if (slot.link != nullptr) stats.traffic += slot.link->stats();
  }
  return stats;
}

}  // namespace verbena
