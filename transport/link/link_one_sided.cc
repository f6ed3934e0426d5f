// Link: what it moves one-sided, and what it leases.

#include <algorithm>

#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/wr_chain.h"
#include "verbena/transport/log/check.h"
#include "verbena/transport/log/mutant.h"

namespace verbena {

Transfer& Link::StartTransfer(Transfer::Direction direction, absl::Span<const BufferView> local,
                              const RemoteRange& remote, TransferListener* listener) {
  VERBENA_CHECK(open()) << "a transfer with " << peer() << ", state " << state_;
  VERBENA_CHECK(!local.empty() && remote.bytes > 0) << "an empty transfer with " << peer();
  VERBENA_CHECK(direction == Transfer::Direction::kWrite || max_reads() > 0)
      << "a READ from " << peer() << ", which answers none";
  Transfer& transfer = endpoint_.transfers().Take(direction, local, remote, listener);
  transfers_.Add(transfer);
  ++stats_.transfers;
  stats_.transfer_bytes += remote.bytes;
  ScheduleFlush();
  return transfer;
}

Transfer& Link::StartAtomic(const AtomicOperation& operation, const RemoteRange& remote,
                            TransferListener* listener) {
  VERBENA_CHECK(open()) << "an atomic operation with " << peer() << ", state " << state_;
  VERBENA_CHECK(has_atomics() && max_reads() > 0) << "atomic operations with " << peer();
  VERBENA_CHECK(remote.bytes == 8 && remote.address % 8 == 0)
      << "an atomic operation on " << remote.bytes << " bytes at " << remote.address;
  Transfer& transfer = endpoint_.transfers().TakeAtomic(operation, remote, listener);
  transfers_.Add(transfer);
  ++stats_.atomics;
  ScheduleFlush();
  return transfer;
}

absl::StatusOr<Lease*> Link::OpenLease(const BufferView& view, LeaseAccess access, LeaseUse use) {
  VERBENA_CHECK(open()) << "a lease for " << peer() << ", state " << state_;
  VERBENA_CHECK(!view.empty()) << "an empty lease for " << peer();
  endpoint_.RefillWindows(*this, 1);
  if (free_leases() == 0) return nullptr;
  absl::StatusOr<Lease*> lease = leases_.Open(view, access, use);
  if (lease.ok() && *lease != nullptr) ++stats_.leases;
  if (leases_.bindings_due() > 0) ScheduleFlush();
  return lease;
}

void Link::EndLease(Lease& lease, LeaseListener* listener) {
  VERBENA_CHECK(open()) << "the end of a lease of " << peer() << ", state " << state_;
  leases_.End(lease, listener);
  if (leases_.work_due()) ScheduleFlush();
  if (!lease_waiters_.empty()) WakeLeaseWaiters();
}

void Link::AbandonLease(Lease& lease) {
  leases_.Abandon(lease, endpoint_.executor().now());
  // A liveness check ends the grace of the lease.
  if (!WatchedLink::linked()) endpoint_.WatchLiveness(*this);
}

// Bindings take send queue slots, of which one must be left for the SEND that tells of them.
uint32_t Link::free_leases() const {
  const uint32_t taken = slots_.in_flight() + static_cast<uint32_t>(pending_.size()) +
                         leases_.bindings_due() + kDrainMarkers + 1;
  return taken < slots_.count() ? std::min(leases_.free(), slots_.count() - taken) : 0;
}

void Link::AwaitLeases(LeaseWaiter& waiter) {
  ++stats_.lease_waits;
  endpoint_.RefillWindows(*this, waiter.leases_wanted);
  lease_waiters_.PushBack(waiter);
}

void Link::WakeLeaseWaiters() {
  // Each waiter takes its leases a moment after it is told, so the promised ones are counted here.
  uint32_t promised = 0;
  while (LeaseWaiter* waiter = lease_waiters_.Front()) {
    if (free_leases() < promised + waiter->leases_wanted) {
      endpoint_.RefillWindows(*this, promised + waiter->leases_wanted);
      return;
    }
    promised += waiter->leases_wanted;
    waiter->IntrusiveNode<LeaseWaiter>::Unlink();
    waiter->OnLeasesFree();
  }
}

void Link::PrepareLeases(WrChain& ready) {
  while (leases_.work_due()) {
    // Posts the WRs prepared before: the next ones use the same memory.
    if (!Ring(ready)) return;
    const uint32_t count = leases_.Prepare(SlotsForTransfers());
    if (count == 0) return;
    for (uint32_t i = 0; i < count; ++i) {
      leases_.chain()[i].wr_id = slots_.IdOf(slots_.posted() + i).Pack();
    }
    // Bindings alone would fill the send queue and never say that they have left it.
    const bool signal = slots_.IsSignalDue(count) || !lease_waiters_.empty();
    if (signal) leases_.chain()[count - 1].send_flags = IBV_SEND_SIGNALED;
    // Refused or not, as in PostPending().
    slots_.Advance(count);
    if (leases_.Placed(slots_.posted() - 1) || signal) {
      slots_.MarkSignalled();
    } else {
      slots_.CountUnsignalled(count);
    }
    ready.Add(leases_.chain(), leases_.chain() + count - 1);
    if (!leases_.more_due()) return;
  }
}

// A link that moves payloads still sends frames: they keep some slots.
uint32_t Link::SlotsForTransfers() const {
  const uint32_t taken =
      slots_.in_flight() + static_cast<uint32_t>(pending_.size()) + kDrainMarkers + kSignalInterval;
  return taken < slots_.count() ? slots_.count() - taken : 0;
}

void Link::PrepareTransfers(WrChain& ready) {
  bulk_refused_ = transfers_.CanGo() && !endpoint_.MayPostBulk();
  if (!transfers_.CanGo() || bulk_refused_) return;
  // The SENDs that are there already do not wait for a slice.
  if (!pending_.empty() && !VERBENA_MUTANT(kSendBehindBulk) && !PostAhead(ready)) return;
  for (bool first = true; transfers_.CanGo() && endpoint_.MayPostBulk(); first = false) {
    // Posts the WRs prepared before: the next ones use the same memory.
    if (!first && !Ring(ready)) return;
    const uint32_t count = transfers_.Prepare(SlotsForTransfers());
    if (count == 0) return;
    ibv_send_wr* chain = transfers_.chain();
    for (uint32_t i = 0; i < count; ++i) chain[i].wr_id = slots_.IdOf(slots_.posted() + i).Pack();
    slots_.MarkSignalled();
    // Refused or not, as in PostPending().
    slots_.Advance(count);
    ready.Add(chain, chain + count - 1);
    endpoint_.NoteBulk(transfers_.prepared_bytes());
    transfers_.Posted(slots_.posted() - 1);
  }
}

// After a flush that had leases or transfers to see to.
void Link::FinishMoves() {
  // A chain's worth of bindings is free again for leases.
  if (!lease_waiters_.empty()) WakeLeaseWaiters();
  // A link that had its slice goes on when the slice has ended, behind the links that were refused
  // one.
  const bool bulk_due = bulk_refused_ || (transfers_.CanGo() && endpoint_.MayPostBulk());
  if ((bulk_due || leases_.work_due()) && SlotsForTransfers() > 0) ScheduleFlush();
}

}  // namespace verbena
