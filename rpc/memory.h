// Memory: where the bytes of payloads lie, and memory that one side lends to the other.
//
//   Buffer             owns memory that a device reads and writes; BufferView: a part of it
//   RegisteredMemory   an application's own memory, of Runtime::RegisterMemory()
//   MemoryBudgets      how much of it each executor may pin on each device
//   Loan               memory lent to the other side until Loan::End(); LeaseAccess says for what
//   RemoteMemory       the other side's memory, by the handle of its Loan
//
// One-sided transfers move payloads and lent memory; no processor copies them. Buffers come from
// Channel::AllocateBuffer(), ServerContext::AllocateBuffer() and RegisteredMemory.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(Buffer block, co_await channel.AllocateBuffer(1 << 20));
//   Fill(block.data(), block.size());

#ifndef VERBENA_RPC_MEMORY_H_
#define VERBENA_RPC_MEMORY_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/export.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/lease_access.h"  // IWYU pragma: export
#include "verbena/transport/link/link_ref.h"
#include "verbena/transport/memory/buffer.h"             // IWYU pragma: export
#include "verbena/transport/memory/memory_budgets.h"     // IWYU pragma: export
#include "verbena/transport/memory/registered_memory.h"  // IWYU pragma: export

namespace verbena {

class Loan;
class RemoteMemory;
class RemoteMemoryHandle;
class Scheduler;

namespace internal {
struct AtomicOperation;
class ExecutorGate;
class Lease;
class Lending;
class Link;
struct RemoteRange;
}  // namespace internal

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
//
//   precondition                             how it is checked     test
//   the memory is registered                 INVALID_ARGUMENT      remote_memory_test
//   the memory is of the link's device       FAILED_PRECONDITION
//   End() on its executor                    FAILED_PRECONDITION   remote_memory_lifetime_test
//   End() of a loan, not of an empty one     FAILED_PRECONDITION   remote_memory_test
//   the Buffer is kept until End() gave OK   not checked
class VERBENA_EXPORT Loan {
 public:
  // Lends nothing.
  Loan() = default;
  Loan(Loan&& other) noexcept { *this = std::move(other); }
  Loan& operator=(Loan&& other) noexcept;
  ~Loan() { Drop(); }

  // Whether this is a loan: Lend() made it, and it was not moved from since.
  explicit operator bool() const { return lease_ != nullptr; }
  // Put it into a message to the peer. The message must go over the channel that the loan was made
  // with, from the same executor. Names nothing if this is no loan. Include
  // "verbena/remote_memory.pb.h", or the code of a .proto that imports verbena/remote_memory.proto.
  RemoteMemoryHandle handle() const;

  // Call it when the peer has said that it is done. Waits until the peer provably is. UNAVAILABLE
  // if the link was lost, before or meanwhile; FAILED_PRECONDITION on another executor, or if the
  // loan is empty; CANCELLED and DEADLINE_EXCEEDED as of any await.
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::Status> End() &&;

 private:
  friend class internal::Lending;

  static Task<absl::Status> EndOf(Loan loan);
  void Drop();

  internal::LinkRef over_;                        // the link over which it was lent
  std::shared_ptr<internal::ExecutorGate> gate_;  // the way to the link's executor
  uint64_t address_ = 0;
  uint64_t bytes_ = 0;
  uint32_t rkey_ = 0;
  LeaseAccess access_ = LeaseAccess::kNone;
  internal::Lease* lease_ = nullptr;
};

// RemoteMemory: memory that the other end of a link lends, to be read and written one-sided.
//
// ServerContext::Remote() and Channel::Remote() make one of a handle that a message brought. It is
// a small value, usable beyond the call, on the executor of its link, for as long as that link and
// the lender's Loan last. The runtime must outlive it. The peer's processor has no part in the
// operations.
//
// An operation that does not fit the handle is refused here. OUT_OF_RANGE: beyond the memory.
// INVALID_ARGUMENT: a word that is not at a multiple of 8, a use that the memory was not lent for,
// or memory of ours that is not registered. FAILED_PRECONDITION: another executor than the link's,
// or local memory of another device, or of this one before it failed and was opened again.
// UNIMPLEMENTED: the device cannot do it. After UNAVAILABLE (the link is lost), CANCELLED or
// DEADLINE_EXCEEDED the operation may have been done in whole, in part or not at all. After
// CANCELLED or DEADLINE_EXCEEDED, no part of it is done any more once a message that is sent later
// has arrived, and the caller may use the local memory again. If a Task that waits is destroyed,
// the device may still use the local memory: destroy its Buffer, and do not use it again. Using
// memory after its Loan has ended costs the link under strict leases.
//
// READs and atomics wait while as many are outstanding as both devices can have. Operations have no
// order among themselves unless one is awaited before the next begins.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(RemoteMemory counters, context.Remote(request.counters()));
//   VERBENA_CO_ASSIGN_OR_RETURN(uint64_t before, co_await counters.FetchAdd(8, 1));
//
//   precondition                           how it is checked     test
//   within the memory                      OUT_OF_RANGE          remote_memory_test
//   a use that it was lent for             INVALID_ARGUMENT      remote_memory_test
//   on the executor of its link            FAILED_PRECONDITION   remote_memory_lifetime_test
//   not used after its Loan has ended      the link is lost      remote_memory_lifetime_test
//   the Buffer lives as long as the Task   not checked
class VERBENA_EXPORT RemoteMemory {
 public:
  uint64_t size() const { return bytes_; }
  LeaseAccess access() const { return access_; }

  // Reads [offset, offset + into.size()) into registered memory, such as that of
  // ServerContext::AllocateBuffer() and Channel::AllocateBuffer(). Its Buffer must live until the
  // Task has ended or is destroyed.
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::Status> Read(uint64_t offset,
                                                                           BufferView into) const;
  // Writes `from`, registered memory, to [offset, offset + from.size()). OK says that the bytes are
  // there. The Buffer of `from` must live until the Task has ended or is destroyed.
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::Status> Write(uint64_t offset,
                                                                            BufferView from) const;

  // Atomic operations on the word of 8 bytes, in the byte order of the machines, at `offset`; both
  // return the word's former value. They are atomic among each other, as far as they go through one
  // device of the lender's; against its processors only if that device says so (IBV_ATOMIC_GLOB;
  // the soft device does).
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::StatusOr<uint64_t>> CompareAndSwap(
      uint64_t offset, uint64_t expected, uint64_t desired) const;
  VERBENA_CORO_WRAPPER VERBENA_CORO_OWNS_ARGUMENTS Task<absl::StatusOr<uint64_t>> FetchAdd(
      uint64_t offset, uint64_t add) const;

 private:
  friend class internal::Lending;
  RemoteMemory() = default;

  static Task<absl::Status> ReadFrom(RemoteMemory memory, uint64_t offset, BufferView into);
  static Task<absl::Status> WriteTo(RemoteMemory memory, uint64_t offset, BufferView from);
  static Task<absl::StatusOr<uint64_t>> DoAtomic(RemoteMemory memory, uint64_t offset,
                                                 internal::AtomicOperation operation);
  absl::Status Check(const char* doing, LeaseAccess wanted, uint64_t offset, uint64_t bytes) const;
  // The link, if it is still there, and `scheduler` is that of its executor.
  absl::StatusOr<internal::Link*> LinkFor(const Scheduler* scheduler) const;
  internal::RemoteRange Within(uint64_t offset, uint64_t bytes) const;

  internal::LinkRef over_;
  uint64_t address_ = 0;
  uint64_t bytes_ = 0;
  uint32_t rkey_ = 0;
  LeaseAccess access_ = LeaseAccess::kNone;
};

}  // namespace verbena

#endif  // VERBENA_RPC_MEMORY_H_
