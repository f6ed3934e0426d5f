// How an Endpoint takes a lost link down (link.cc has the queue pair's part): in which
// order its slot, its receives and its memory come back, and what is kept while a device or a peer
// may still use it.

#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/coro/sleep.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {
namespace {

// How often a device is asked whether a lost link's peer has left our memory.
constexpr Duration kQuiescePoll = std::chrono::milliseconds(10);

}  // namespace

void Endpoint::StartTeardown(Link& link, const absl::Status& reason) {
  if (!service_.shutting_down()) {
    ++stats_.links_lost;
    Log(LogLevel::kInfo, fmt::format("link to {} (QPN {:#x}) closes: {}", link.peer(), link.qpn(),
                                     reason.ToString()));
  }
  tasks_.links.Spawn(Teardown(link));
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
    link->AddWindows(*std::move(batch));
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
  polled_.draining = true;
  executor_.DrainCq(queues_.cq());
  polled_.draining = false;
}

// QP to ERR → every posted WR flushes → LAST_WQE, where the device sends it → the CQ is empty →
// destroy → the CQ is empty again → forget the QPN.
Task<void> Endpoint::Teardown(Link& link) {
  co_await link.Drain(context_, tasks_.teardown_pacer);
  (void)co_await tasks_.teardown_pacer.Pass();
  // Before the queue is emptied: nothing that comes later is of this queue pair.
  const bool told_of_last = link.qp().told_of_last();
  DrainCompletions();
  const uint32_t qpn = link.qpn();
  const QpIdentity identity = context_.device().IdentityOf(link.qp().get());
  context_.Unsubscribe(qpn);
  std::vector<BufferPin> leased = co_await link.Destroy(context_.control());
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
  supplies_.LeaveSource(source);
}

// A receive that has not completed is the device's until its queue pair is gone.
bool Endpoint::EndLinkReceives(uint32_t slot, QpIdentity identity) {
  LinkReceives& receives = *queues_.link_receives();
  const uint32_t held = receives.unaccounted(slot);
  if (held > 0 && !context_.device().Quiesced(identity)) {
    Log(LogLevel::kError,
        fmt::format("{}: a queue pair that could not be destroyed keeps {} receives: this executor "
                    "has one link fewer",
                    device_name(), held));
    return false;
  }
  stats_.receives_lost += receives.End(slot);
  return true;
}

// The queue pair is gone, but what its peer began before may still be on its way into memory that
// was leased to it.
void Endpoint::Hold(QpIdentity qp, uint32_t qpn, std::vector<BufferPin> leased) {
  if (leased.empty() || context_.device().Quiesced(qp)) return;
  Log(LogLevel::kWarning,
      fmt::format("{} pieces of memory that the peer of QPN {:#x} had a lease on are "
                  "kept back: it is in the middle of a write",
                  leased.size(), qpn));
  tasks_.holds.Spawn(HoldUntilQuiesced(qp, std::move(leased)));
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

}  // namespace verbena::internal
