// Loan: memory that the application lends to the other end of one link, for one-sided access.
//
// Made by Channel::Lend() or ServerContext::Lend(); its handle() goes into a message to that end,
// which makes a RemoteMemory of it. The memory stays the application's: both sides see what either
// does to it, and one Buffer may be lent to many. Move-only; one executor, but destroyed on any.
//
// The two applications agree when the peer is done; then the lender calls End(). Once End() has
// returned OK, no peer reaches the memory by this loan. Under strict leases the device enforces
// this, and a peer that was not done loses the link; otherwise Verbena trusts the peer. Until End()
// has returned OK, keep the Buffer, and do not use the memory for anything that the peer must not
// see or change.
//
// After a failed End(), or if the loan is destroyed without it, drop the Buffer: its memory returns
// to its pool once the peer cannot reach it. That is LeaseLimits::grace later; without memory
// windows the link closes then. A lost link ends its loans.
//
// The loans to one peer take at most half of LeaseLimits::windows_per_link at once.
//
// Lend() fails with INVALID_ARGUMENT if the memory cannot be lent so; FAILED_PRECONDITION for
// memory of another device, or of this one before it failed and was opened again; UNIMPLEMENTED if
// the device has no atomics; RESOURCE_EXHAUSTED for one loan too many, or if no window came free
// within 10 s; UNAVAILABLE if the link is lost.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(
//       Loan loan, co_await channel.Lend(table.view(), LeaseAccess::kRead));
//   *request.mutable_table() = loan.handle();
//   VERBENA_CO_RETURN_IF_ERROR(co_await stub.Scan(request, reply));
//   VERBENA_CO_RETURN_IF_ERROR(co_await std::move(loan).End());

#ifndef VERBENA_RPC_LOAN_H_
#define VERBENA_RPC_LOAN_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/remote_memory.pb.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/lease_access.h"  // IWYU pragma: export
#include "verbena/transport/memory/buffer.h"

namespace verbena {

class Executor;
class Loan;

namespace internal {
class Endpoint;
class ExecutorGate;
class Lease;
class Link;

// Lend() of channels and of handlers' contexts, over `link`. `deadline` bounds the wait for a
// window, too.
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::StatusOr<Loan>> LendOver(
    Link& link, BufferView view, LeaseAccess access, TimePoint deadline);
}  // namespace internal

class Loan {
 public:
  // Lends nothing.
  Loan() = default;
  Loan(Loan&& other) noexcept { *this = std::move(other); }
  Loan& operator=(Loan&& other) noexcept;
  ~Loan() { Drop(); }

  // Whether this is a loan: Lend() made it, and it was not moved from since.
  explicit operator bool() const { return lease_ != nullptr; }
  // Put it into a message to the peer. The message must go over the channel that the loan was made
  // with, from the same executor.
  const RemoteMemoryHandle& handle() const { return handle_; }

  // Call it when the peer has said that it is done. Waits until the peer provably is. UNAVAILABLE
  // if the link was lost, before or meanwhile; FAILED_PRECONDITION on another executor, or if the
  // loan is empty; CANCELLED and DEADLINE_EXCEEDED as of any await.
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::Status> End() &&;

 private:
  friend Task<absl::StatusOr<Loan>> internal::LendOver(internal::Link& link, BufferView view,
                                                       LeaseAccess access, TimePoint deadline);

  static Task<absl::StatusOr<Loan>> Open(internal::Endpoint& endpoint, uint32_t slot,
                                         uint32_t generation, BufferView view,
                                         internal::BufferPin pin, LeaseAccess access,
                                         TimePoint deadline);
  static Task<absl::Status> EndOf(Loan loan);
  void Drop();

  // The link over which it was lent.
  struct LentOver {
    // nullptr once the link is lost. Call it on the link's executor.
    internal::Link* Open() const;

    std::shared_ptr<internal::ExecutorGate> gate;  // open as long as `endpoint` is there
    const Executor* executor = nullptr;            // only to be compared: it may be gone
    internal::Endpoint* endpoint = nullptr;
    uint32_t slot = 0;
    uint32_t generation = 0;
    uint64_t identity = 0;
  };

  RemoteMemoryHandle handle_;
  LentOver over_;
  internal::Lease* lease_ = nullptr;
};

}  // namespace verbena

#endif  // VERBENA_RPC_LOAN_H_
