// How an Endpoint takes a lost link down: in which order its work requests, its queue pair and its
// memory come back, and what is kept while a device or a peer may still use it.

#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/log/log.h"
#include "verbena/transport/log/mutant.h"
#include "verbena/transport/log/throttled_log.h"

namespace verbena {
namespace {

// How often a device is asked whether a lost link's peer has left our memory.
constexpr Duration kQuiescePoll = std::chrono::milliseconds(10);

}  // namespace

void Endpoint::StartTeardown(Link& link, const absl::Status& reason) {
  if (!shutting_down_) {
    ++stats_.links_lost;
    Log(LogLevel::kInfo, fmt::format("link to {} (QPN {:#x}) closes: {}", link.peer(), link.qpn(),
                                     reason.ToString()));
  }
  link.RoomWaiter::Unlink();
  link.WatchedLink::Unlink();
  link.BorrowingLink::Unlink();
  tasks_.Spawn(Teardown(link));
}

// QP to ERR → every posted WR flushes → LAST_WQE, where the device sends it → the CQ is empty →
// destroy → the CQ is empty again → forget the QPN. Each wait is bounded: some devices never flush,
// or never send the event.
Task<void> Endpoint::Teardown(Link& link) {
  link.stream_.Close();
  ibv_qp* const qp = link.qp_.get();
  // Until the queue pair is in ERR, the peer may use up receives of the endpoint: so this goes
  // ahead of others' destructions.
  absl::Status status = co_await context_.control().Finish(
      VERBENA_MUTANT(kErrorBehindTeardowns) ? ControlKind::kTeardown : ControlKind::kToError, qp,
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
      static thread_local ThrottledLog log({.lines = 1, .interval = std::chrono::seconds(10)});
      log.Write(LogLevel::kWarning, executor_.now(),
                fmt::format("QPN {:#x}: {} of the posted WRs did not flush in time", link.qpn(),
                            link.slots_.in_flight()));
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

// Ordered by the queue pair, so that no refill is under way when the queue pair is destroyed.
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

// Nothing is posted meanwhile, so the loop ends with the completions that are there at its start.
// Otherwise a peer that sends whenever an answer brings it credits would keep the executor in here.
void Endpoint::DrainCompletions() {
  draining_ = !VERBENA_MUTANT(kDrainPosts);
  executor_.DrainCq(cq_);
  draining_ = false;
}

// A control thread destroys what the device has of the link, windows before their queue pair: the
// other way round takes some devices a minute (rxe 6.1).
Task<void> Endpoint::FreeLink(Link& link) {
  (void)co_await teardown_pacer_.Pass();
  // Before the queue is emptied: nothing that comes later is of this queue pair.
  const bool told_of_last = link.last_wqe_.is_set();
  DrainCompletions();
  const uint32_t qpn = link.qpn();
  const QpIdentity identity = context_.device().IdentityOf(link.qp_.get());
  const LinkKey key = link.key();
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
  DrainCompletions();
  link.transfers_.Fail(absl::UnavailableError("the link was lost"));
  Hold(identity, qpn, std::move(leased));
  links_.Forget(link);
  closed_traffic_ += link.stats();
  link.slots_.ReleaseAll([this](uint32_t buffer) { send_buffers_->GiveBack(buffer); });
  PeerSource& source = link.source_;
  link.CountReleased(link.held_);
  // The QP is gone, so nothing can reach this slot any more but completions of its old generation.
  --stats_.links;
  lost_receives_.OnLinkLost(links_.slot(key), told_of_last, identity);
  links_.Free(key.slot);
  UpdateReceiveTarget();
  SettleReceives();
  LeaveSource(source);
}

// The queue pair is gone, but what its peer began before may still be on its way into memory that
// was leased to it.
void Endpoint::Hold(QpIdentity qp, uint32_t qpn, std::vector<BufferPin> leased) {
  if (leased.empty() || context_.device().Quiesced(qp)) return;
  Log(LogLevel::kWarning,
      fmt::format("{} pieces of memory that the peer of QPN {:#x} had a lease on are "
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

}  // namespace verbena
