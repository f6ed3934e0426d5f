// Loan: memory that the application lends to the other end of one link, for one-sided access.
//
// Made by Channel::Lend() or ServerContext::Lend(); its handle() goes into a message to that end,
// which makes a RemoteMemory of it. The memory stays the application's: both sides see what either
// does to it, and one Buffer may be lent to many. Move-only; one executor, but destroyed on any.
//
// When the peer is done is between the two applications. Whoever knows it calls End(), after which,
// when that says OK, no peer reaches the memory by this loan, whatever it does: under strict leases
// the device vouches for it, and a peer that was not done loses the link. Until then let nothing
// else use the memory. A loan that is destroyed without End(), or whose End() fails, takes care of
// itself: drop the Buffer, and its memory goes home once the peer cannot reach it. That is
// LeaseLimits::grace later, and without memory windows costs the link. A lost link ends its loans.
//
// At most half of LeaseLimits::windows_per_link at once are with one peer.
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
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/lease_access.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena {

class Endpoint;
class Lease;
class Link;
class Loan;

namespace internal {
// To the peer of `link`. INVALID_ARGUMENT for memory that cannot be lent so, UNIMPLEMENTED for
// atomics where the device has none, RESOURCE_EXHAUSTED for a loan too many, or when no window
// comes free for long; UNAVAILABLE when the link is lost.
VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::StatusOr<Loan>> LendOver(
    Link& link, BufferView view, LeaseAccess access);
}  // namespace internal

class Loan {
 public:
  // Lends nothing.
  Loan() = default;
  Loan(Loan&& other) noexcept { *this = std::move(other); }
  Loan& operator=(Loan&& other) noexcept;
  ~Loan() { Drop(); }

  // Whether it was made, and not moved from since.
  explicit operator bool() const { return lease_ != nullptr; }
  // For a message to the peer, over the channel and on the executor that it was made on.
  const RemoteMemoryHandle& handle() const { return handle_; }

  // The peer is done, as it said. Waits until it provably is. UNAVAILABLE when the link was lost,
  // before or meanwhile; CANCELLED and DEADLINE_EXCEEDED as of any await.
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::Status> End() &&;

 private:
  friend Task<absl::StatusOr<Loan>> internal::LendOver(Link& link, BufferView view,
                                                       LeaseAccess access);

  static Task<absl::StatusOr<Loan>> Grant(Endpoint& endpoint, uint32_t slot, uint32_t generation,
                                          BufferView view, BufferPin pin, LeaseAccess access);
  static Task<absl::Status> EndOf(Loan loan);
  // nullptr once it is lost; on its executor.
  Link* OpenLink() const;
  void Drop();
  // The same on its executor.
  void Abandon();

  RemoteMemoryHandle handle_;
  std::weak_ptr<const bool> endpoint_alive_;
  Endpoint* endpoint_ = nullptr;
  // The link's key.
  uint32_t slot_ = 0;
  uint32_t generation_ = 0;
  Lease* lease_ = nullptr;
};

}  // namespace verbena

#endif  // VERBENA_RPC_LOAN_H_
