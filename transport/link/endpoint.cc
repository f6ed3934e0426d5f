#include "verbena/transport/link/endpoint.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/connect/handshake.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/link/ids.h"
#include "verbena/transport/link/proof.h"

namespace verbena::internal {
namespace {

// The receives that no link owns.
uint32_t SharedCredits(const LinkLimits& limits, const Device& device) {
  if (!device.capabilities().srq) return 0;
  return limits.srq_depth - kRepostBatch -
         limits.max_links * (limits.initial_credits + kReserveCredits);
}

bool IsTcp(const DeviceContext& context) { return context.address().kind == LinkKind::kTcp; }

// Between two attempts to make new queues. (start)
constexpr Duration kFirstPause = std::chrono::milliseconds(100);
constexpr Duration kLongestPause = std::chrono::seconds(10);

// How often a device is asked whether a lost link's peer has left our memory.
constexpr Duration kQuiescePoll = std::chrono::milliseconds(10);

}  // namespace

EndpointQueues::EndpointQueues(Executor& executor, DeviceContext& context, const LinkLimits& limits,
                               uint32_t executor_index, LinkTable& links,
                               CompletionListener& listener)
    : executor_(executor),
      context_(context),
      limits_(limits),
      comp_vector_(context.CompVectorOf(executor_index)),
      listener_(listener),
      lost_receives_(context.device(), links) {}

absl::StatusOr<std::unique_ptr<ReceiveRing>> EndpointQueues::NewRing(DeviceContext& context,
                                                                     const LinkLimits& limits) {
  if (!context.device().capabilities().srq) return ReceiveRing::Absent();
  return ReceiveRing::Create(context.device(), context.pd(), limits.srq_depth,
                             LostReceives::Spares(limits, context.device()), limits.eager_bytes);
}

absl::StatusOr<std::unique_ptr<LinkReceives>> EndpointQueues::NewLinkReceives(
    DeviceContext& context, const LinkLimits& limits) {
  if (context.device().capabilities().srq) return nullptr;
  return LinkReceives::Create(context.device(), context.pd(), limits.max_links,
                              limits.receives_per_link, limits.eager_bytes);
}

absl::StatusOr<ibv_cq*> EndpointQueues::NewCq() {
  const uint32_t entries =
      CompletionQueueEntries(limits_) + LostReceives::Spares(limits_, context_.device());
  return executor_.AddCq(context_.device(), static_cast<int>(entries), listener_, comp_vector_);
}

void EndpointQueues::RemoveCq() {
  if (absl::Status removed = executor_.RemoveCq(cq_); !removed.ok()) {
    VERBENA_LOG_LINE(
        kLink, kError,
        fmt::format("{}a completion queue was not destroyed: {}",
                    are_lost_ ? "a lost queue is replaced, but " : "", removed.ToString()),
        {{"device", context_.device().name()}});
  }
}

absl::Status EndpointQueues::Create(std::unique_ptr<ReceiveRing> ring,
                                    std::unique_ptr<LinkReceives> link_receives) {
  receives_ = std::move(ring);
  link_receives_ = std::move(link_receives);
  lost_receives_.Follow(*receives_);
  absl::StatusOr<ibv_cq*> cq = NewCq();
  if (cq.ok()) cq_ = *cq;
  return cq.status();
}

absl::Status EndpointQueues::Exchange(std::unique_ptr<ReceiveRing>& ring) {
  VERBENA_ASSIGN_OR_RETURN(ibv_cq * cq, NewCq());
  Unsubscribe();
  RemoveCq();
  cq_ = cq;
  ++number_;
  are_lost_ = false;
  std::swap(receives_, ring);
  lost_receives_.Follow(*receives_);
  return absl::OkStatus();
}

void EndpointQueues::Subscribe(const DeviceContext::EventHandler& handler) {
  context_.SubscribeQueue(cq_, executor_, handler);
  if (receives_->srq() != nullptr) {
    context_.SubscribeQueue(receives_->srq(), executor_, handler);
  }
}

void EndpointQueues::Unsubscribe() {
  context_.UnsubscribeQueue(cq_);
  context_.UnsubscribeQueue(receives_->srq());
}

std::unique_ptr<ReceiveRing> EndpointQueues::TakeReceives() {
  RemoveCq();
  cq_ = nullptr;
  return std::move(receives_);
}

void EndpointQueues::Close() {
  if (cq_ != nullptr) Unsubscribe();
  receives_.reset();
  link_receives_.reset();
  if (cq_ == nullptr) return;
  RemoveCq();
  cq_ = nullptr;
}

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::Create(
    Executor& executor, DeviceContext& context, const LinkLimits& wanted, uint32_t executor_index,
    uint32_t executor_count, const RuntimeId& id) {
  VERBENA_ASSIGN_OR_RETURN(EndpointMemory memory, Register(context, wanted));
  return CreateWith(std::move(memory), executor, context, wanted, executor_index, executor_count,
                    id);
}

absl::StatusOr<EndpointMemory> Endpoint::Register(DeviceContext& context,
                                                  const LinkLimits& wanted) {
  Device& device = context.device();
  VERBENA_ASSIGN_OR_RETURN(LinkLimits limits, DeriveLimits(wanted, device, IsTcp(context)));
  EndpointMemory memory;
  VERBENA_ASSIGN_OR_RETURN(memory.receives, EndpointQueues::NewRing(context, limits));
  VERBENA_ASSIGN_OR_RETURN(memory.link_receives, EndpointQueues::NewLinkReceives(context, limits));
  VERBENA_ASSIGN_OR_RETURN(memory.send.buffers,
                           SendBuffers::Create(device, context.pd(), limits.send_buffers,
                                               limits.eager_bytes, limits.max_links));
  VERBENA_ASSIGN_OR_RETURN(memory.send.atomic_scratch,
                           AtomicScratch::Create(device, context.pd(), limits.max_links));
  return memory;
}

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::CreateWith(
    EndpointMemory memory, Executor& executor, DeviceContext& context, const LinkLimits& wanted,
    uint32_t executor_index, uint32_t executor_count, const RuntimeId& id) {
  VERBENA_ASSIGN_OR_RETURN(LinkLimits limits,
                           DeriveLimits(wanted, context.device(), IsTcp(context)));
  const EndpointIdentity identity = {
      .executor_index = executor_index, .executor_count = executor_count, .runtime_id = id};
  std::unique_ptr<Endpoint> endpoint(
      new Endpoint(executor, context, limits, identity, std::move(memory.send)));
  VERBENA_RETURN_IF_ERROR(
      endpoint->Init(std::move(memory.receives), std::move(memory.link_receives)));
  return endpoint;
}

Endpoint::Endpoint(Executor& executor, DeviceContext& context, const LinkLimits& derived,
                   const EndpointIdentity& identity, SendMemory memory)
    : LinkHost(*this, executor, context, derived, std::move(memory),
               SharedCredits(derived, context.device())),
      identity_(identity),
      links_(limits().max_links),
      queues_(executor, context, limits(), identity.executor_index, links_, *this),
      gate_(std::make_shared<ExecutorGate>(executor)),
      teardown_pacer_(executor, kTeardownStepsPerTurn),
      link_tasks_(executor),
      holds_(executor),
      liveness_(executor, context, links_, queues_.lost_receives(), link_tasks_,
                limits().ping_interval / 2) {}

absl::Status Endpoint::Init(std::unique_ptr<ReceiveRing> receives,
                            std::unique_ptr<LinkReceives> link_receives) {
  VERBENA_RETURN_IF_ERROR(queues_.Create(std::move(receives), std::move(link_receives)));
  receives_ = &queues_.receives();
  VERBENA_ASSIGN_OR_RETURN(memory_, PayloadMemory::Create(executor(), context(), limits()));
  SubscribeQueues();
  return absl::OkStatus();
}

Endpoint::~Endpoint() {
  VERBENA_CHECK(links_.count() == 0)
      << links_.count() << " links are left: Shutdown() has not ended";
  gate_->Close();
  liveness_.Stop();
  queues_.Close();
}

// --- completions

void Endpoint::OnCompletions(const ibv_wc* completions, int count) {
  poll_.is_one = count == 1;
  for (int i = 0; i < count; ++i) {
    poll_.left = count - 1 - i;
    const WrId id = WrId::Unpack(completions[i].wr_id);
    if (id.kind == WrId::Kind::kReceive) {
      OnReceive(completions[i], id.slot);
    } else if (id.kind == WrId::Kind::kSend) [[likely]] {
      OnSendDone(completions[i], id);
    } else {
      OnLinkReceive(completions[i], id);
    }
  }
  if (queues_.receives().needs_post()) ScheduleFlush();
}

void Endpoint::OnReceive(const ibv_wc& completion, uint32_t buffer) {
  if (!queues_.receives().OnCompletion(buffer)) {
    ++stats_.stale_completions;
    return;
  }
  Link* link = links_.FindQpn(completion.qp_num);
  if (link == nullptr) {
    ++stats_.stale_completions;
  } else if (completion.status != IBV_WC_SUCCESS) {
    // If the link has ended, this is a receive that its dying queue pair took from the shared
    // queue: only its buffer is wanted back.
    link->OnFailedReceive(completion);
  } else if (link->open()) {
    const bool invalidates = (completion.wc_flags & IBV_WC_WITH_INV) != 0;
    link->OnSend(queues_.receives().data(buffer), completion.byte_len,
                 invalidates ? completion.invalidated_rkey : 0);
  }
  queues_.receives().Release(buffer);
  if (queues_.receives().in_doubt()) [[unlikely]] {
    queues_.lost_receives().OnReceive(completion.qp_num);
    SettleReceives();
  }
}

// Reposted at once, not at the turn's end: a batch is one doorbell either way, and so no SEND that
// leaves meanwhile returns credits ahead of their receives.
void Endpoint::OnLinkReceive(const ibv_wc& completion, const WrId& id) {
  LinkReceives* const receives = queues_.link_receives();
  if (receives == nullptr || !receives->OnCompletion(id)) {
    ++stats_.stale_completions;
    return;
  }
  const LinkKey key = {receives->slot_of(id.slot), id.generation};
  Link* link = Find(key);
  if (link != nullptr && link->open() && completion.status == IBV_WC_SUCCESS) {
    const bool invalidates = (completion.wc_flags & IBV_WC_WITH_INV) != 0;
    link->OnSend(receives->data(id.slot), completion.byte_len,
                 invalidates ? completion.invalidated_rkey : 0);
    // Handling it may have freed the link.
    link = Find(key);
  }
  receives->Release(id.slot);
  const bool goes_on = link != nullptr && (link->open() || link->state() == LinkState::kConnecting);
  if (!goes_on) return;
  if (completion.status != IBV_WC_SUCCESS) return link->OnFailedReceive(completion);
  if (absl::Status posted = receives->Repost(key.slot); !posted.ok()) link->Close(posted);
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
  if (queues_.receives().Post().ok()) return true;
  // The flush finds the same, and may close links.
  ScheduleFlush();
  return false;
}

void Endpoint::Flush() {
  if (absl::Status status = queues_.receives().Post(); !status.ok()) {
    VERBENA_LOG_LINE(kLink, kError, fmt::format("all links close: {}", status.ToString()),
                     {{"device", device_name()}});
    CloseAll(status);
  }
}

// --- credits

void Endpoint::UpdateReceiveTarget() {
  // Each has all of its own posted.
  if (queues_.link_receives() != nullptr) return;
  const uint32_t own = links_.count() * (limits().initial_credits + kReserveCredits);
  queues_.receives().set_needed(own + credit_issuer().borrowed());
  if (queues_.receives().needs_post()) ScheduleFlush();
}

void Endpoint::SettleReceives() {
  const TimePoint now = executor().now();
  LostReceives& lost = queues_.lost_receives();
  stats_.receives_lost += lost.Settle(now);
  if (lost.WantsNewQueues(now, service_.in_service())) {
    LoseQueues("the device may have dropped too many receives");
  }
  if (queues_.receives().needs_post()) ScheduleFlush();
}

// --- life

// Teardown waits for this, so the link outlives it.
Task<void> Endpoint::WatchStream(Link& link) {
  absl::Status end;
  try {
    const bool received = (co_await link.qp().stream().Receive()).ok();
    end = received ? absl::InvalidArgumentError(
                         fmt::format("{} sent a bootstrap message on an open link", link.peer()))
                   : PeerGone(link.peer());
  } catch (const std::exception& error) {
    // The stream may be the program's.
    end = absl::InternalError(
        fmt::format("the bootstrap connection of {} threw: {}", link.peer(), error.what()));
  } catch (...) {
    end = absl::InternalError(fmt::format("the bootstrap connection of {} threw", link.peer()));
  }
  (void)co_await teardown_pacer_.Pass();
  link.qp().stream().EndReading();
  link.Close(end);
}

Task<void> Endpoint::Shutdown() {
  service_.ShutDown();
  CloseAll(absl::UnavailableError("the endpoint shuts down"));
  co_await JoinLogged(link_tasks_, fmt::format("the endpoint on {}", device_name()));
  co_await AwaitMaking();
  holds_.RequestCancel();
  co_await JoinLogged(holds_, fmt::format("the endpoint on {}", device_name()));
  liveness_.Stop();
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
  stats.links = links_.count();
  stats.receives_posted = queues_.receives().posted();
  if (queues_.link_receives() != nullptr) {
    stats.receives_posted += queues_.link_receives()->posted();
  }
  stats.credits_borrowed = credit_issuer().borrowed();
  for (const LinkSlot& slot : links_.slots()) {
    if (slot.link != nullptr) stats.traffic += slot.link->stats();
  }
  return stats;
}

// How an Endpoint makes links. LinkHandshake connects and opens them.

absl::StatusOr<uint32_t> Endpoint::TakeSlot() {
  VERBENA_RETURN_IF_ERROR(service_.Check());
  const std::optional<uint32_t> index = links_.Take();
  if (!index.has_value()) {
    ++stats_.links_refused;
    return absl::ResourceExhaustedError(fmt::format(
        "max_links reached: all {} links of this executor are in use", limits().max_links));
  }
  return *index;
}

absl::StatusOr<Endpoint::DeviceParts> Endpoint::MakeParts(const PortAddress& address) {
  Device& device = context().device();
  VERBENA_ASSIGN_OR_RETURN(
      QpHandle qp, CreateLinkQp(device, context().pd(), queues_.cq(), queues_.receives().srq(),
                                limits(), supplies().max_inline_bytes(), address));
  DeviceParts parts{.qp = std::move(qp), .windows = {}};
  if (limits().leases.level == LeaseLevel::kStrict) {
    parts.windows = AllocateWindows(device, context().pd(),
                                    std::min(kSpareWindows, limits().leases.windows_per_link));
  }
  return parts;
}

// Ordered by the endpoint: Shutdown() waits until no queue pair is being made on its queues.
Task<absl::StatusOr<Endpoint::DeviceParts>> Endpoint::NewParts(PortAddress address) {
  absl::StatusOr<DeviceParts> parts = co_await context().control().Run(
      ControlKind::kConnect, this, [this, address] { return MakeParts(address); });
  if (!parts.ok() || service_.in_service()) co_return parts;
  co_return co_await context().control().Finish(
      ControlKind::kTeardown, this,
      [parts = *std::move(parts)]() mutable -> absl::StatusOr<DeviceParts> {
        parts.windows.windows.clear();
        parts.qp.Reset();
        return absl::UnavailableError("the endpoint went out of service meanwhile");
      });
}

Task<absl::StatusOr<Link*>> Endpoint::NewLink(LinkListener& listener, const MessageStream& stream) {
  // Without links no timer of this endpoint reads them.
  context().PollEventsIfUnattended();
  VERBENA_CO_ASSIGN_OR_RETURN(PortAddress address, context().CurrentAddress(stream.own_address()));
  VERBENA_CO_ASSIGN_OR_RETURN(uint32_t taken, TakeSlot());
  const uint32_t index = taken;
  absl::Cleanup give_back = [this, index] { links_.GiveBack(index); };
  VERBENA_CO_ASSIGN_OR_RETURN(DeviceParts parts, co_await NewParts(address));
  std::move(give_back).Cancel();
  // The device may have given out the number of a queue pair that it has just destroyed: the
  // completions of the old one are polled out before the number is another link's.
  if (links_.HasQpn(parts.qp->qp_num)) DrainCompletions();
  const LinkKey key = links_.KeyOf(index);
  links_.slot(key).address = address;
  PeerSource& source = supplies().JoinSource(stream.source(), stream.names_source());
  Link* link =
      &links_.Add(index, std::make_unique<Link>(*this, key, std::move(parts.qp), listener, source));
  link->AddWindows(std::move(parts.windows));
  UpdateReceiveTarget();
  // The peer may send as soon as it has the answer, so the receives must lie there before.
  Flush();
  if (LinkReceives* receives = queues_.link_receives(); receives != nullptr) {
    if (absl::Status posted = receives->Begin(key, link->qp().get()); !posted.ok()) {
      link->Close(posted);
      co_return posted;
    }
  }
  context().Subscribe(link->qpn(), executor(), [this, gate = gate(), key](ibv_event_type type) {
    if (!gate->open()) return;
    if (Link* found = Find(key)) OnQpEvent(*found, type);
  });
  co_return link;
}

void Endpoint::OnQpEvent(Link& link, ibv_event_type type) {
  if (type == IBV_EVENT_QP_LAST_WQE_REACHED) {
    link.qp().OnLastWqe();
    return;
  }
  const absl::Status reason = absl::UnavailableError(
      fmt::format("{} on QPN {:#x}, peer {}", ibv_event_type_str(type), link.qpn(), link.peer()));
  if (type == IBV_EVENT_QP_FATAL) return link.Break(reason);
  // For a request of the peer's, which no other device would take either.
  link.Close(reason);
}

Task<absl::StatusOr<Link*>> Endpoint::Connect(std::unique_ptr<MessageStream> stream,
                                              LinkListener& listener, ExecutorWish wish,
                                              Duration proof_time) {
  const TimePoint deadline = SaturatingAdd(executor().FreshNow(), limits().connect_timeout);
  VERBENA_CO_ASSIGN_OR_RETURN(Link * created,
                              co_await WithDeadline(NewLink(listener, *stream), deadline));
  LinkHandshake handshake(*this, links_, gate_, identity_, created->key(), std::move(stream));
  VERBENA_CO_ASSIGN_OR_RETURN(Link * link, co_await WithDeadline(handshake.Offer(wish), deadline));
  Watch(*link, handshake.TakeStream());
  if (links_.slot(link->key()).address.kind == LinkKind::kSoft) co_return link;
  LinkProof proof(*this, links_, link->key());
  const TimePoint limit = SaturatingAdd(proof.begun(), proof_time);
  co_return co_await proof.Await(std::min(limit, deadline));
}

Task<absl::StatusOr<Link*>> Endpoint::Accept(std::unique_ptr<MessageStream> stream,
                                             LinkParameters offer, LinkListener& listener,
                                             std::span<const OfferedMethod> methods,
                                             uint64_t incarnation) {
  const TimePoint deadline = SaturatingAdd(executor().FreshNow(), limits().connect_timeout);
  absl::StatusOr<Link*> created = co_await WithDeadline(NewLink(listener, *stream), deadline);
  if (!created.ok()) {
    absl::Status refused = co_await WithDeadline(RefuseOffer(*stream, created.status()), deadline);
    if (!refused.ok())
      VERBENA_LOG_LINE(kLink, kInfo, refused.ToString(),
                       {{"peer", stream->peer()}, {"device", device_name()}});
    co_return created.status();
  }
  LinkHandshake handshake(*this, links_, gate_, identity_, (*created)->key(), std::move(stream));
  VERBENA_CO_ASSIGN_OR_RETURN(
      Link * link,
      co_await WithDeadline(handshake.Answer(std::move(offer), methods, incarnation), deadline));
  Watch(*link, handshake.TakeStream());
  co_return link;
}

void Endpoint::Watch(Link& link, std::unique_ptr<MessageStream> stream) {
  link.qp().stream().KeepAndRead(std::move(stream));
  link_tasks_.Spawn(WatchStream(link));
}

// How an Endpoint gets over the loss of its queues: what the device reports as CQ_ERR or SRQ_ERR.

void Endpoint::SubscribeQueues() {
  queues_.Subscribe([this, gate = gate(), queues = queues_.number()](ibv_event_type type) {
    if (gate->open()) OnQueueEvent(type, queues);
  });
}

void Endpoint::CloseAll(const absl::Status& reason) {
  for (LinkSlot& slot : links_.slots()) {
    if (slot.link != nullptr) slot.link->Close(reason);
  }
}

void Endpoint::OnQueueEvent(ibv_event_type type, uint32_t queues) {
  if (service_.shutting_down()) return;
  const bool device_failed = type == IBV_EVENT_DEVICE_FATAL;
  // Queues that were replaced may have failed more than once.
  if (!device_failed && (service_.failed() || queues != queues_.number())) return;
  if (device_failed) {
    Fail(absl::UnavailableError(fmt::format(
        "{} has failed, or was removed ({}): its links are lost, and no other can use it until it "
        "is opened again",
        device_name(), ibv_event_type_str(type))));
  } else {
    LoseQueues(ibv_event_type_str(type));
  }
}

void Endpoint::Fail(const absl::Status& reason) {
  service_.Fail(reason);
  CloseAll(service_.reason());
}

void Endpoint::LoseQueues(const char* reason) {
  // A Rebuild() that is under way sees this.
  queues_.MarkLost();
  const bool is_first = service_.Suspend(absl::UnavailableError(
      fmt::format("{} lost a queue of this executor ({}), which is being replaced; try again",
                  device_name(), reason)));
  if (is_first) holds_.Spawn(Rebuild());
  CloseAll(service_.reason());
}

Task<void> Endpoint::AwaitMaking() {
  // Two rounds: the second is ordered behind the ends of queue pairs that were made for nothing.
  for (int i = 0; i < 2; ++i) {
    (void)co_await context().control().Finish(ControlKind::kConnect, this,
                                              [] { return absl::OkStatus(); });
  }
}

Task<void> Endpoint::Rebuild() {
  co_await link_tasks_.Join();
  co_await AwaitMaking();
  for (Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    if (service_.failed()) co_return;
    absl::Status replaced = co_await ReplaceQueues();
    if (service_.failed()) co_return;
    if (replaced.ok() && !queues_.are_lost()) break;
    if (replaced.ok()) replaced = absl::UnavailableError("the new queues are lost as well");
    VERBENA_LOG_LINE(
        kLink, kError,
        fmt::format("{}: lost queues are not replaced yet: {}", device_name(), replaced.ToString()),
        {{"device", device_name()}});
    if (!(co_await Sleep(pause)).ok()) co_return;
  }
  service_.Resume();
  VERBENA_LOG_LINE(kLink, kWarning, fmt::format("{}: lost queues are replaced", device_name()),
                   {{"device", device_name()}});
}

// The completion queue is made here: its executor polls it.
Task<absl::Status> Endpoint::ReplaceQueues() {
  VERBENA_CO_ASSIGN_OR_RETURN(
      std::unique_ptr<ReceiveRing> made,
      co_await context().control().Finish(ControlKind::kConnect, this, [this] {
        return EndpointQueues::NewRing(context(), limits());
      }));
  // The lost ring, once the new one has its place.
  std::unique_ptr<ReceiveRing> unused = std::move(made);
  const absl::Status exchanged = queues_.Exchange(unused);
  if (exchanged.ok()) {
    receives_ = &queues_.receives();
    SubscribeQueues();
    UpdateReceiveTarget();
  }
  (void)co_await context().control().Finish(ControlKind::kTeardown, this,
                                            [unused = std::move(unused)]() mutable {
                                              unused.reset();
                                              return absl::OkStatus();
                                            });
  co_return exchanged;
}

// How an Endpoint ends whose device is opened again, while others may still hold what it gave out.

// Links that the device's failure has closed keep that reason.
void Endpoint::Retire(const absl::Status& reason) {
  if (!service_.failed()) Fail(reason);
}

bool Endpoint::unused() const {
  return drained() && holds_.size() == 0 && users_.use_count() == 1 && memory_->send().unused() &&
         memory_->receive().unused() && memory_->landing().unused();
}

Task<void> Endpoint::Release() {
  VERBENA_CHECK(unused()) << device_name() << ", links " << links_.count();
  co_await Shutdown();
  queues_.Unsubscribe();
  // Before the receives, which its completions and a flush would look for.
  FlushHook::Unlink();
  auto memory = std::make_unique<EndpointMemory>();
  memory->receives = queues_.TakeReceives();
  memory->link_receives = queues_.TakeLinkReceives();
  memory->send = supplies().TakeMemory();
  for (BufferPool* pool : {&memory_->send(), &memory_->receive(), &memory_->landing()}) {
    auto arenas = pool->TakeArenas();
    std::move(arenas.begin(), arenas.end(), std::back_inserter(memory->arenas));
  }
  (void)co_await context().control().Finish(ControlKind::kTeardown, this,
                                            [memory = std::move(memory)]() mutable {
                                              memory.reset();
                                              return absl::OkStatus();
                                            });
}

// How an Endpoint takes a lost link down (link.cc has the queue pair's part): in which
// order its slot, its receives and its memory come back, and what is kept while a device or a peer
// may still use it.

void Endpoint::StartTeardown(Link& link, const absl::Status& reason) {
  if (!service_.shutting_down()) {
    ++stats_.links_lost;
    VERBENA_LOG_LINE(kLink, kInfo,
                     fmt::format("link to {} (QPN {:#x}) closes: {}", link.peer(), link.qpn(),
                                 reason.ToString()),
                     {{"peer", link.peer()}, {"link", link.qpn()}, {"device", device_name()}});
  }
  link_tasks_.Spawn(Teardown(link));
}

Task<void> Endpoint::Refill(LinkKey key, const void* order, uint32_t count,
                            std::vector<MwHandle> worn) {
  absl::StatusOr<WindowBatch> batch = co_await context().control().Finish(
      ControlKind::kConnect, order,
      [this, count, worn = std::move(worn)]() mutable -> absl::StatusOr<WindowBatch> {
        worn.clear();
        return AllocateWindows(context().device(), context().pd(), count);
      });
  Link* link = Find(key);
  if (link != nullptr && link->open()) {
    link->AddWindows(*std::move(batch));
    co_return;
  }
  (void)co_await context().control().Finish(ControlKind::kTeardown, order,
                                            [batch = *std::move(batch)]() mutable {
                                              batch.windows.clear();
                                              return absl::OkStatus();
                                            });
}

// Nothing is posted meanwhile, so the loop ends with the completions that are there at its start.
// Otherwise a peer that sends whenever an answer brings it credits would keep the executor in here.
void Endpoint::DrainCompletions() {
  poll_.draining = true;
  executor().DrainCq(queues_.cq());
  poll_.draining = false;
}

// QP to ERR → every posted WR flushes → LAST_WQE, where the device sends it → the CQ is empty →
// destroy → the CQ is empty again → forget the QPN.
Task<void> Endpoint::Teardown(Link& link) {
  co_await link.Drain(teardown_pacer_);
  (void)co_await teardown_pacer_.Pass();
  // Before the queue is emptied: nothing that comes later is of this queue pair.
  const bool told_of_last = link.qp().told_of_last();
  DrainCompletions();
  const uint32_t qpn = link.qpn();
  const QpIdentity identity = context().device().IdentityOf(link.qp().get());
  context().Unsubscribe(qpn);
  std::vector<BufferPin> leased = co_await link.Destroy();
  DrainCompletions();
  link.Release();
  Hold(identity, qpn, std::move(leased));
  FreeLink(link, told_of_last, identity);
}

// The QP is gone, so nothing can reach the link's slot any more but completions of its old
// generation.
void Endpoint::FreeLink(Link& link, bool told_of_last, QpIdentity identity) {
  links_.Forget(link);
  stats_.traffic += link.stats();
  PeerSource& source = link.source();
  const LinkKey key = link.key();
  bool reusable = true;
  if (queues_.link_receives() != nullptr) {
    reusable = EndLinkReceives(key.slot, identity);
  } else {
    queues_.lost_receives().OnLinkFreed(links_.slot(key), told_of_last, identity);
  }
  links_.Free(key.slot, reusable);
  UpdateReceiveTarget();
  SettleReceives();
  supplies().LeaveSource(source);
}

// A receive that has not completed is the device's until its queue pair is gone.
bool Endpoint::EndLinkReceives(uint32_t slot, QpIdentity identity) {
  LinkReceives& receives = *queues_.link_receives();
  const uint32_t held = receives.unaccounted(slot);
  if (held > 0 && !context().device().Quiesced(identity)) {
    VERBENA_LOG_LINE(
        kLink, kError,
        fmt::format("{}: a queue pair that could not be destroyed keeps {} receives: this executor "
                    "has one link fewer",
                    device_name(), held),
        {{"device", device_name()}});
    return false;
  }
  stats_.receives_lost += receives.End(slot);
  return true;
}

// The queue pair is gone, but what its peer began before may still be on its way into memory that
// was leased to it.
void Endpoint::Hold(QpIdentity qp, uint32_t qpn, std::vector<BufferPin> leased) {
  if (leased.empty() || context().device().Quiesced(qp)) return;
  VERBENA_LOG_LINE(kLink, kWarning,
                   fmt::format("{} pieces of memory that the peer of QPN {:#x} had a lease on are "
                               "kept back: it is in the middle of a write",
                               leased.size(), qpn),
                   {{"link", qpn}, {"device", device_name()}});
  holds_.Spawn(HoldUntilQuiesced(qp, std::move(leased)));
}

Task<void> Endpoint::HoldUntilQuiesced(QpIdentity qp, std::vector<BufferPin> leased) {
  while (!context().device().Quiesced(qp)) {
    if ((co_await Sleep(kQuiescePoll)).ok()) continue;
    // The endpoint shuts down, and that peer still does not move: the memory is never used again.
    static auto* const kept = new std::vector<std::vector<BufferPin>>;
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    kept->push_back(std::move(leased));
    co_return;
  }
}

}  // namespace verbena::internal
