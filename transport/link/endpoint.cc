#include "verbena/transport/link/endpoint.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/log/log.h"
#include "verbena/transport/log/mutant.h"

namespace verbena {
namespace {

// How often a device is asked whether a lost link's peer has left our memory.
constexpr Duration kQuiescePoll = std::chrono::milliseconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::Create(Executor& executor,
                                                           DeviceContext& context,
                                                           const LinkLimits& wanted,
                                                           uint32_t executor_index,
                                                           uint32_t executor_count) {
  absl::StatusOr<LinkLimits> limits = DeriveLimits(wanted, context.device());
  if (!limits.ok()) return limits.status();
  std::unique_ptr<Endpoint> endpoint(
      new Endpoint(executor, context, *limits, context.address(), executor_index, executor_count));
  if (absl::Status status = endpoint->Init(); !status.ok()) return status;
  return endpoint;
}

Endpoint::Endpoint(Executor& executor, DeviceContext& context, const LinkLimits& limits,
                   const PortAddress& address, uint32_t executor_index, uint32_t executor_count)
    : executor_(executor),
      context_(context),
      limits_(limits),
      address_(address),
      executor_index_(executor_index),
      executor_count_(executor_count),
      max_inline_bytes_(
          std::min(context.device().capabilities().max_inline_bytes, limits.eager_bytes)),
      max_wr_bytes_(kMaxTransferWrBytes),
      credit_pool_(limits.srq_depth - kRepostBatch -
                   limits.max_links * (limits.initial_credits + kReserveCredits)),
      slots_(limits.max_links),
      alive_(std::make_shared<bool>(true)),
      tasks_(executor),
      holds_(executor) {
  for (uint32_t slot = 0; slot < limits.max_links; ++slot) free_slots_.push_back(slot);
}

absl::Status Endpoint::Init() {
  Device& device = context_.device();
  absl::StatusOr<std::unique_ptr<ReceiveRing>> receives =
      ReceiveRing::Create(device, context_.pd(), limits_.srq_depth, limits_.eager_bytes);
  if (!receives.ok()) return receives.status();
  receives_ = *std::move(receives);
  absl::StatusOr<std::unique_ptr<SendBuffers>> buffers =
      SendBuffers::Create(device, context_.pd(), limits_.send_buffers, limits_.eager_bytes);
  if (!buffers.ok()) return buffers.status();
  send_buffers_ = *std::move(buffers);
  send_chain_.emplace(limits_.send_queue_depth, send_buffers_->lkey());
  absl::StatusOr<ibv_cq*> cq =
      executor_.AddCq(device, static_cast<int>(CompletionQueueEntries(limits_)), *this);
  if (!cq.ok()) return cq.status();
  cq_ = *cq;
  absl::StatusOr<AtomicLandings> landings =
      AtomicLandings::Create(device, context_.pd(), limits_.max_links);
  if (!landings.ok()) return landings.status();
  atomic_landings_ = *std::move(landings);
  absl::StatusOr<PayloadMemory> memory = PayloadMemory::Create(executor_, context_, limits_);
  if (!memory.ok()) return memory.status();
  memory_.emplace(*std::move(memory));
  return absl::OkStatus();
}

Endpoint::~Endpoint() {
  executor_.StopTimer(*this);
  for (Slot& slot : slots_) slot.link.reset();
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

void Endpoint::Flush() {
  if (absl::Status status = receives_->Post(); !status.ok()) {
    Log(LogLevel::kError, fmt::format("all links close: {}", status.ToString()));
    for (Slot& slot : slots_) {
      if (slot.link != nullptr) slot.link->Close(status);
    }
  }
}

// --- credits and buffers

void Endpoint::UpdateReceiveTarget() {
  const uint32_t own = stats_.links * (limits_.initial_credits + kReserveCredits);
  receives_->set_needed(own + credit_pool_.lent());
  if (receives_->needs_post()) ScheduleFlush();
}

void Endpoint::GrowWindow(ReceiveGrants& grants) {
  if (grants.Grow() > 0) {
    UpdateReceiveTarget();
    return;
  }
  if (credit_pool_.free() > 0) return;  // at its own maximum
  // The link that was quiet for longest gives first. Its answer makes the credits free for the next
  // who starves.
  Link* quietest = nullptr;
  for (const Slot& slot : slots_) {
    Link* link = slot.link.get();
    if (link == nullptr || !link->open() || &link->grants_ == &grants) continue;
    if (link->grants_.surplus() == 0 || link->recall_due_) continue;
    if (quietest == nullptr || link->IsQuieterThan(*quietest)) quietest = link;
  }
  if (quietest != nullptr) quietest->Recall();
}

void Endpoint::AwaitSendRoom(Link& link) {
  if (std::find(room_waiters_.begin(), room_waiters_.end(), &link) == room_waiters_.end()) {
    room_waiters_.push_back(&link);
  }
}

void Endpoint::WakeRoomWaiters() {
  std::vector<Link*> waiters;
  waiters.swap(room_waiters_);
  for (Link* link : waiters) link->WakeWriters();
}

// --- liveness

// Nothing is ever sent on the stream after the handshake: whatever comes out of it, the peer is
// going. Teardown closes the stream and then waits for this, so the link outlives it.
Task<void> Endpoint::WatchStream(Link& link) {
  absl::StatusOr<std::string> message = co_await link.stream_->Receive();
  link.unwatched_.Set();
  link.Close(message.ok() ? absl::InvalidArgumentError(fmt::format(
                                "{} sent a bootstrap message on an open link", link.peer()))
                          : absl::UnavailableError(
                                fmt::format("{} closed the connection or died", link.peer())));
}

void Endpoint::StartLivenessTimer() {
  if (timer_running_) return;
  timer_running_ = true;
  executor_.StartTimer(*this, executor_.now() + limits_.ping_interval / 2);
}

void Endpoint::OnTimer() {
  timer_running_ = false;
  for (Slot& slot : slots_) {
    if (slot.link != nullptr) slot.link->CheckLiveness(executor_.now());
  }
  if (stats_.links > 0) StartLivenessTimer();
}

// --- teardown

void Endpoint::StartTeardown(Link& link, const absl::Status& reason) {
  if (!shutting_down_) {
    ++stats_.links_lost;
    Log(LogLevel::kInfo, fmt::format("link to {} (QPN {:#x}) closes: {}", link.peer(), link.qpn(),
                                     reason.ToString()));
  }
  std::erase(room_waiters_, &link);
  tasks_.Spawn(Teardown(link));
}

// QP to ERR → every posted WR flushes → LAST_WQE, where the device sends it → the CQ is empty →
// destroy → the CQ is empty again → forget the QPN. Each wait is bounded: some devices never flush,
// or never send the event.
Task<void> Endpoint::Teardown(Link& link) {
  if (link.stream_ != nullptr) link.stream_->Close();
  absl::Status status = MoveQpToError(context_.device(), link.qp_.get());
  if (!status.ok()) Log(LogLevel::kWarning, status.ToString());
  if (link.stream_ != nullptr) (void)co_await link.unwatched_.Wait();
  const TimePoint limit = executor_.now() + limits_.teardown_timeout;
  // Where a marker would never complete, moving to ERR has flushed what was posted (siw), and
  // destroying the queue pair ends the rest.
  if (link.InFlight() > 0 && context_.device().capabilities().flushes_in_error) {
    link.PostDrainMarker();
    status = co_await WithDeadline(WaitFor(link.drained_), limit);
    if (!status.ok()) {
      Log(LogLevel::kWarning, fmt::format("QPN {:#x}: {} of the posted WRs did not flush in time",
                                          link.qpn(), link.InFlight()));
    }
  }
  if (context_.device().capabilities().last_wqe_event) {
    context_.PollEventsIfUnattended();
    // Early, late or never: when it does not come, polling the CQ empty around the destruction is
    // all there is.
    (void)co_await WithDeadline(WaitFor(link.last_wqe_), limit);
  }
  FreeLink(link);
}

Task<absl::Status> Endpoint::WaitFor(Event& event) { co_return co_await event.Wait(); }

void Endpoint::FreeLink(Link& link) {
  executor_.DrainCq(cq_);
  const uint32_t qpn = link.qpn();
  const uint32_t index = link.key_.slot;
  context_.Unsubscribe(qpn);
  // Windows before their queue pair: the other way round takes some devices a minute (rxe 6.1).
  std::vector<BufferPin> leased = link.leases_.TakeAll();
  link.qp_.Reset();
  link.state_ = LinkState::kClosed;
  executor_.DrainCq(cq_);
  link.one_sided_.Fail(absl::UnavailableError("the link was lost"));
  Hold(qpn, std::move(leased));
  links_by_qpn_.erase(qpn);
  if (last_receiver_ == &link) last_receiver_ = nullptr;
  closed_traffic_ += link.stats();
  for (uint32_t& buffer : link.slots_) {
    if (buffer != SendBuffers::kNone) send_buffers_->GiveBack(buffer);
  }
  // The QP is gone, so nothing can reach this slot any more but completions of its old generation.
  slots_[index].link.reset();
  ++slots_[index].generation;
  free_slots_.push_back(index);
  --stats_.links;
  UpdateReceiveTarget();
  NoteSendRoom();
}

// The queue pair is gone, but what its peer began before may still be on its way into memory that
// it was lent.
void Endpoint::Hold(uint32_t qpn, std::vector<BufferPin> leased) {
  if (leased.empty() || context_.device().Quiesced(qpn)) return;
  Log(LogLevel::kWarning, fmt::format("{} pieces of memory that the peer of QPN {:#x} was lent are "
                                      "kept back: it is in the middle of a write",
                                      leased.size(), qpn));
  holds_.Spawn(HoldUntilQuiesced(qpn, std::move(leased)));
}

Task<void> Endpoint::HoldUntilQuiesced(uint32_t qpn, std::vector<BufferPin> leased) {
  while (!context_.device().Quiesced(qpn)) {
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
  for (Slot& slot : slots_) {
    if (slot.link != nullptr) slot.link->Close(absl::UnavailableError("the endpoint shuts down"));
  }
  co_await tasks_.Join();
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
