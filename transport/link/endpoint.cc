#include "verbena/transport/link/endpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/log/log.h"
#include "verbena/transport/log/mutant.h"

namespace verbena {

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
      tasks_(executor) {
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
    link->OnSend(receives_->data(buffer), completion.byte_len);
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

// --- connecting

absl::StatusOr<Link*> Endpoint::NewLink(FrameSink& sink) {
  if (shutting_down_) return absl::UnavailableError("the endpoint is shutting down");
  if (free_slots_.empty()) {
    ++stats_.links_refused;
    return absl::ResourceExhaustedError(fmt::format(
        "max_links reached: all {} links of this executor are in use", limits_.max_links));
  }
  absl::StatusOr<QpHandle> qp =
      CreateLinkQp(context_.device(), context_.pd(), cq_, receives_->srq(), limits_,
                   max_inline_bytes_, address_);
  if (!qp.ok()) return qp.status();
  if (links_by_qpn_.contains((*qp)->qp_num)) {
    // The device gave out a number whose old completions may still be queued: poll them out first.
    executor_.DrainCq(cq_);
    if (links_by_qpn_.contains((*qp)->qp_num)) {
      return absl::UnavailableError(
          fmt::format("QPN {:#x} is still in use by a closing link; try again", (*qp)->qp_num));
    }
  }
  const uint32_t index = free_slots_.front();
  free_slots_.pop_front();
  Slot& slot = slots_[index];
  const LinkKey key{index, slot.generation & WrId::kGenerationMask};
  slot.link.reset(new Link(*this, key, *std::move(qp), sink));
  Link* link = slot.link.get();
  links_by_qpn_[link->qpn()] = link;
  ++stats_.links;
  UpdateReceiveTarget();
  // The peer may send as soon as it has the answer, so the receives must lie there before.
  Flush();
  std::weak_ptr<bool> alive = alive_;
  context_.Subscribe(link->qpn(), executor_, [this, alive, key](ibv_event_type type) {
    if (alive.expired()) return;
    if (Link* found = Find(key)) OnQpEvent(*found, type);
  });
  return link;
}

void Endpoint::OnQpEvent(Link& link, ibv_event_type type) {
  if (type == IBV_EVENT_QP_LAST_WQE_REACHED) {
    link.last_wqe_.Set();
    return;
  }
  link.Close(absl::UnavailableError(
      fmt::format("{} on QPN {:#x}, peer {}", ibv_event_type_str(type), link.qpn(), link.peer())));
}

LinkParameters Endpoint::MyParameters(const Link& link, uint32_t psn) const {
  LinkParameters mine;
  mine.kind = context_.address().kind;
  std::memcpy(mine.gid.data(), address_.gid.raw, mine.gid.size());
  mine.lid = address_.lid;
  mine.qp_number = link.qpn();
  mine.packet_sequence_number = psn;
  mine.max_reads = MaxReads(context_.device());
  mine.mtu_bytes = 128u << address_.active_mtu;
  mine.credit_grant = limits_.initial_credits;
  mine.eager_bytes = limits_.eager_bytes;
  mine.executor_index = executor_index_;
  mine.executor_count = executor_count_;
  return mine;
}

absl::Status Endpoint::ConnectQp(Link& link, uint32_t psn, const LinkParameters& peer) {
  RemoteQp remote;
  remote.qpn = peer.qp_number;
  remote.psn = peer.packet_sequence_number;
  std::memcpy(remote.gid.raw, peer.gid.data(), peer.gid.size());
  remote.lid = peer.lid;
  remote.max_reads = peer.max_reads;
  // The handshake admits the five sizes that verbs know, 256 to 4096.
  for (remote.mtu = IBV_MTU_256;
       (128u << remote.mtu) < peer.mtu_bytes && remote.mtu < IBV_MTU_4096;) {
    remote.mtu = static_cast<ibv_mtu>(remote.mtu + 1);
  }
  return ConnectLinkQp(context_.device(), link.qp_.get(), address_, psn, remote);
}

Task<absl::StatusOr<Link*>> Endpoint::Connect(std::unique_ptr<MessageStream> stream,
                                              FrameSink& sink, uint32_t wanted_executor) {
  absl::StatusOr<Link*> created = NewLink(sink);
  if (!created.ok()) co_return created.status();
  const LinkKey key = (*created)->key();
  // Also when the caller abandons this: the queue pair must not stay behind.
  absl::Cleanup give_up = [this, key] { CloseIfThere(key, "connecting was given up"); };
  LinkParameters peer;
  absl::Status status = co_await WithDeadline(Offer(key, *stream, wanted_executor, peer),
                                              executor_.now() + limits_.connect_timeout);
  if (!status.ok()) co_return status;
  Link* link = Find(key);
  if (link == nullptr || link->state() != LinkState::kConnecting) co_return Lost();
  std::move(give_up).Cancel();
  MarkOpen(*link, peer, stream->peer());
  Watch(*link, std::move(stream));
  co_return link;
}

Task<absl::Status> Endpoint::Offer(LinkKey key, MessageStream& stream, uint32_t wanted_executor,
                                   LinkParameters& peer) {
  const uint32_t psn = NewPsn();
  LinkParameters mine = MyParameters(*Find(key), psn);
  mine.executor_index = wanted_executor;
  absl::StatusOr<LinkParameters> answer = co_await OfferLink(stream, mine);
  if (!answer.ok()) co_return answer.status();
  peer = *answer;
  Link* link = Find(key);
  if (link == nullptr || link->state() != LinkState::kConnecting) co_return Lost();
  if (absl::Status status = ConnectQp(*link, psn, peer); !status.ok()) co_return status;
  co_return co_await ConfirmReady(stream);
}

Task<absl::StatusOr<Link*>> Endpoint::Accept(std::unique_ptr<MessageStream> stream,
                                             LinkParameters offer, FrameSink& sink) {
  absl::StatusOr<Link*> created = NewLink(sink);
  if (!created.ok()) {
    absl::Status refused = co_await WithDeadline(RefuseOffer(*stream, created.status()),
                                                 executor_.now() + limits_.connect_timeout);
    if (!refused.ok()) Log(LogLevel::kInfo, refused.ToString());
    co_return created.status();
  }
  const LinkKey key = (*created)->key();
  absl::Cleanup give_up = [this, key] { CloseIfThere(key, "the handshake failed"); };
  absl::Status status = co_await WithDeadline(Answer(**created, *stream, offer),
                                              executor_.now() + limits_.connect_timeout);
  if (!status.ok()) co_return status;
  // Open since its answer went out, it may have been lost again meanwhile.
  Link* link = Find(key);
  if (link == nullptr || !link->open()) co_return Lost();
  std::move(give_up).Cancel();
  Watch(*link, std::move(stream));
  co_return link;
}

// Touches the link before its first wait only: after that it may be gone.
Task<absl::Status> Endpoint::Answer(Link& link, MessageStream& stream,
                                    const LinkParameters& offer) {
  const uint32_t psn = NewPsn();
  if (absl::Status status = ConnectQp(link, psn, offer); !status.ok()) {
    absl::Status refused = co_await RefuseOffer(stream, status);
    co_return refused.ok() ? status : refused;
  }
  // Open before the answer goes out: the peer's first request may be faster than its word that it
  // is ready.
  MarkOpen(link, offer, stream.peer());
  absl::Status status = co_await AcceptOffer(stream, offer, MyParameters(link, psn));
  if (!status.ok()) co_return status;
  co_return co_await AwaitReady(stream);
}

void Endpoint::MarkOpen(Link& link, const LinkParameters& peer, const std::string& name) {
  const uint32_t max_reads = std::min<uint32_t>(
      {static_cast<uint32_t>(std::max(context_.device().attributes().max_qp_init_rd_atom, 0)),
       peer.max_reads, kMaxReads});
  link.MarkOpen(peer.credit_grant, peer.eager_bytes, max_reads, name);
  ++stats_.links_opened;
  StartLivenessTimer();
}

void Endpoint::CloseIfThere(LinkKey key, const char* reason) {
  if (Link* link = Find(key)) link->Close(absl::CancelledError(reason));
}

absl::Status Endpoint::Lost() {
  return absl::UnavailableError("the link was lost during its handshake");
}

uint32_t Endpoint::NewPsn() {
  // A packet sequence number has 24 bits; random, so that packets of a former QP with this number
  // do not fit.
  return static_cast<uint32_t>(Random::Real().Next()) & 0xffffff;
}

void Endpoint::Watch(Link& link, std::unique_ptr<MessageStream> stream) {
  link.stream_ = std::move(stream);
  link.unwatched_.Reset();
  tasks_.Spawn(WatchStream(link));
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
  if (link.InFlight() > 0) {
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
  link.qp_.Reset();
  link.state_ = LinkState::kClosed;
  executor_.DrainCq(cq_);
  link.one_sided_.Fail(absl::UnavailableError("the link was lost"));
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

Task<void> Endpoint::Shutdown() {
  shutting_down_ = true;
  for (Slot& slot : slots_) {
    if (slot.link != nullptr) slot.link->Close(absl::UnavailableError("the endpoint shuts down"));
  }
  co_await tasks_.Join();
  executor_.StopTimer(*this);
  timer_running_ = false;
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
