// Link and its LinkSender: what the link moves one-sided, and what it leases.

#include <utility>

#include "verbena/transport/base/check.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/link_leases.h"
#include "verbena/transport/link/link_sender.h"
#include "verbena/transport/link/wr_chain.h"

namespace verbena::internal {

Transfer& Link::StartTransfer(Transfer::Direction direction, absl::Span<const BufferView> local,
                              const RemoteRange& remote, TransferListener* listener) {
  VERBENA_CHECK(open()) << "a transfer with " << peer() << ", state " << state_;
  VERBENA_CHECK(!local.empty() && remote.bytes > 0) << "an empty transfer with " << peer();
  VERBENA_CHECK(direction == Transfer::Direction::kWrite || max_reads() > 0)
      << "a READ from " << peer() << ", which answers none";
  Transfer& transfer = endpoint_.supplies().transfers().Take(direction, local, remote, listener);
  sender_.transfers().Add(transfer);
  ++sender_.stats().transfers;
  sender_.stats().transfer_bytes += remote.bytes;
  sender_.ScheduleFlush();
  return transfer;
}

Transfer& Link::StartAtomic(const AtomicOperation& operation, const RemoteRange& remote,
                            TransferListener* listener) {
  VERBENA_CHECK(open()) << "an atomic operation with " << peer() << ", state " << state_;
  VERBENA_CHECK(has_atomics() && max_reads() > 0) << "atomic operations with " << peer();
  VERBENA_CHECK(remote.bytes == 8 && remote.address % 8 == 0)
      << "an atomic operation on " << remote.bytes << " bytes at " << remote.address;
  Transfer& transfer = endpoint_.supplies().transfers().TakeAtomic(operation, remote, listener);
  sender_.transfers().Add(transfer);
  ++sender_.stats().atomics;
  sender_.ScheduleFlush();
  return transfer;
}

absl::StatusOr<Lease*> Link::OpenLease(const BufferView& view, LeaseAccess access, LeaseUse use) {
  VERBENA_CHECK(open()) << "a lease for " << peer() << ", state " << state_;
  VERBENA_CHECK(!view.empty()) << "an empty lease for " << peer();
  RefillWindows(1);
  if (free_leases() == 0) return nullptr;
  LeaseTable& table = sender_.leases().table();
  absl::StatusOr<Lease*> lease = table.Open(view, access, use);
  if (lease.ok() && *lease != nullptr) ++sender_.stats().leases;
  if (table.bindings_due() > 0) sender_.ScheduleFlush();
  return lease;
}

void Link::EndLease(Lease& lease, LeaseListener* listener) {
  VERBENA_CHECK(open()) << "the end of a lease of " << peer() << ", state " << state_;
  LinkLeases& leases = sender_.leases();
  leases.table().End(lease, listener);
  if (leases.table().work_due()) sender_.ScheduleFlush();
  if (leases.awaited()) sender_.WakeLeaseWaiters();
}

void Link::AbandonLease(Lease& lease) {
  sender_.leases().table().Abandon(lease, endpoint_.executor().now());
  // A liveness check ends the grace of the lease.
  if (!WatchedLink::linked()) endpoint_.WatchLiveness(*this);
}

void Link::AwaitLeases(LeaseWaiter& waiter) {
  ++sender_.stats().lease_waits;
  RefillWindows(waiter.leases_wanted);
  sender_.leases().Await(waiter);
}

// Ordered by the queue pair, so that no refill is under way when the queue pair is destroyed.
void Link::RefillWindows(uint32_t wanted) {
  LeaseTable& table = sender_.leases().table();
  const uint32_t count = table.BeginRefill(wanted);
  if (count != 0) endpoint_.StartRefill(key(), qp_.get(), count, table.TakeWorn());
}

void Link::AddWindows(WindowBatch windows) {
  sender_.leases().table().Refill(std::move(windows));
  sender_.WakeLeaseWaiters();
}

void LinkSender::PrepareLeases(WrChain& ready) {
  LeaseTable& table = leases_.table();
  SendSlots& slots = queue_.slots();
  while (table.work_due()) {
    // Posts the WRs prepared before: the next ones use the same memory.
    if (!Ring(ready)) return;
    const uint32_t count = table.Prepare(SlotsForTransfers());
    if (count == 0) return;
    ibv_send_wr* const chain = table.chain();
    queue_.Name(chain, count);
    // Bindings alone would fill the send queue and never say that they have left it.
    const bool signal = slots.IsSignalDue(count) || leases_.awaited();
    if (signal) chain[count - 1].send_flags = IBV_SEND_SIGNALED;
    slots.Advance(count);
    if (table.Placed(slots.posted() - 1) || signal) {
      slots.MarkSignalled();
    } else {
      slots.CountUnsignalled(count);
    }
    ready.Add(chain, chain + count - 1);
    if (!table.more_due()) return;
  }
}

bool LinkSender::PrepareTransfers(WrChain& ready) {
  if (!transfers_.CanGo()) return false;
  if (!endpoint_.MayPostBulk()) return true;
  // The SENDs that are there already do not wait for a slice.
  if (!queue_.empty() && !PostAhead(ready)) return false;
  for (bool first = true; transfers_.CanGo() && endpoint_.MayPostBulk(); first = false) {
    // Posts the WRs prepared before: the next ones use the same memory.
    if (!first && !Ring(ready)) return false;
    const uint32_t count = transfers_.Prepare(SlotsForTransfers());
    if (count == 0) return false;
    ibv_send_wr* const chain = transfers_.chain();
    queue_.Name(chain, count);
    SendSlots& slots = queue_.slots();
    slots.MarkSignalled();
    slots.Advance(count);
    ready.Add(chain, chain + count - 1);
    endpoint_.NoteBulk(transfers_.prepared_bytes());
    transfers_.Posted(slots.posted() - 1);
  }
  return false;
}

// After a flush that had leases or transfers to see to.
void LinkSender::FinishMoves(bool bulk_refused) {
  // A chain's worth of bindings is free again for leases.
  if (leases_.awaited()) WakeLeaseWaiters();
  // A link that had its slice goes on when the slice has ended, behind the links that were refused
  // one.
  const bool bulk_due = bulk_refused || (transfers_.CanGo() && endpoint_.MayPostBulk());
  if ((bulk_due || leases_.table().work_due()) && SlotsForTransfers() > 0) ScheduleFlush();
}

}  // namespace verbena::internal
