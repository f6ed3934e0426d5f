#include "verbena/transport/link/endpoint.h"

#include <exception>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/link/ids.h"

namespace verbena::internal {
namespace {

// The receives that no link owns.
uint32_t SharedCredits(const LinkLimits& limits, const Device& device) {
  if (!device.capabilities().srq) return 0;
  return limits.srq_depth - kRepostBatch -
         limits.max_links * (limits.initial_credits + kReserveCredits);
}

bool IsTcp(const DeviceContext& context) { return context.address().kind == LinkKind::kTcp; }

}  // namespace

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

Endpoint::Endpoint(Executor& executor, DeviceContext& context, const LinkLimits& limits,
                   const EndpointIdentity& identity, SendMemory memory)
    : executor_(executor),
      context_(context),
      limits_(limits),
      identity_(identity),
      supplies_(std::move(memory), context.device(), limits_),
      credit_issuer_(SharedCredits(limits_, context.device())),
      links_(limits_.max_links),
      queues_(executor, context, limits_, links_, *this),
      life_(executor),
      tasks_(executor),
      liveness_(executor, context, links_, queues_.lost_receives(), tasks_.links,
                limits_.ping_interval / 2) {}

absl::Status Endpoint::Init(std::unique_ptr<ReceiveRing> receives,
                            std::unique_ptr<LinkReceives> link_receives) {
  VERBENA_RETURN_IF_ERROR(queues_.Create(std::move(receives), std::move(link_receives)));
  VERBENA_ASSIGN_OR_RETURN(memory_, PayloadMemory::Create(executor_, context_, limits_));
  SubscribeQueues();
  return absl::OkStatus();
}

Endpoint::~Endpoint() {
  VERBENA_CHECK(links_.count() == 0)
      << links_.count() << " links are left: Shutdown() has not ended";
  life_.gate()->Close();
  liveness_.Stop();
  queues_.Close();
}

// --- completions

void Endpoint::OnCompletions(const ibv_wc* completions, int count) {
  polled_.is_one = count == 1;
  for (int i = 0; i < count; ++i) {
    polled_.left = count - 1 - i;
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
  if (link == nullptr || completion.status != IBV_WC_SUCCESS) {
    // A receive that a dying queue pair took from the shared queue: only its buffer is wanted back.
    if (link == nullptr) ++stats_.stale_completions;
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
  if (!goes_on || completion.status != IBV_WC_SUCCESS) return;
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
    Log(LogLevel::kError, fmt::format("all links close: {}", status.ToString()));
    CloseAll(status);
  }
}

// --- credits

void Endpoint::UpdateReceiveTarget() {
  // Each has all of its own posted.
  if (queues_.link_receives() != nullptr) return;
  const uint32_t own = links_.count() * (limits_.initial_credits + kReserveCredits);
  queues_.receives().set_needed(own + credit_issuer_.borrowed());
  if (queues_.receives().needs_post()) ScheduleFlush();
}

void Endpoint::GrowWindow(Link& link) {
  if (credit_issuer_.Grow(link, supplies_.is_shared(link.source()))) UpdateReceiveTarget();
}

void Endpoint::SettleReceives() {
  const TimePoint now = executor_.now();
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
    end =
        received
            ? absl::InvalidArgumentError(
                  fmt::format("{} sent a bootstrap message on an open link", link.peer()))
            : absl::UnavailableError(fmt::format("{} closed the connection or died", link.peer()));
  } catch (const std::exception& error) {
    // The stream may be the program's.
    end = absl::InternalError(
        fmt::format("the bootstrap connection of {} threw: {}", link.peer(), error.what()));
  } catch (...) {
    end = absl::InternalError(fmt::format("the bootstrap connection of {} threw", link.peer()));
  }
  (void)co_await tasks_.teardown_pacer.Pass();
  link.qp().stream().EndReading();
  link.Close(end);
}

Task<void> Endpoint::Shutdown() {
  service_.ShutDown();
  CloseAll(absl::UnavailableError("the endpoint shuts down"));
  co_await JoinLogged(tasks_.links, fmt::format("the endpoint on {}", device_name()));
  co_await AwaitMaking();
  tasks_.holds.RequestCancel();
  co_await JoinLogged(tasks_.holds, fmt::format("the endpoint on {}", device_name()));
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
  stats.credits_borrowed = credit_issuer_.borrowed();
  for (const LinkSlot& slot : links_.slots()) {
    if (slot.link != nullptr) stats.traffic += slot.link->stats();
  }
  return stats;
}

}  // namespace verbena::internal
