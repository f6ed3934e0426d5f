// RemoteMemory: memory that the other end of a link lends, to be read and written one-sided.
//
// ServerContext::Remote() and Channel::Remote() make one of a handle that a message brought. It is
// a small value, usable beyond the call, on the executor of its link, for as long as that link and
// the lender's Loan last. The runtime outlives it. The peer's processor has no part in the
// operations.
//
// An operation that does not fit the handle is refused here. OUT_OF_RANGE: beyond the memory.
// INVALID_ARGUMENT: a word that is not at a multiple of 8, a use that the memory was not lent for,
// or memory of ours that is not registered. FAILED_PRECONDITION: another executor than the link's,
// or local memory of another device, or of this one before it failed and was opened again.
// UNIMPLEMENTED: the device cannot do it. After UNAVAILABLE (the link is lost), CANCELLED or
// DEADLINE_EXCEEDED the operation may have been done in whole, in part or not at all. After
// CANCELLED or DEADLINE_EXCEEDED, no part of it is done after the arrival of a message that is sent
// later, and the caller may use the local memory again. If a Task that waits is destroyed, the
// device may still use the local memory: destroy its Buffer, and do not use it again. Using memory
// after its Loan has ended costs the link under strict leases.
//
// READs and atomics wait while as many are outstanding as both devices can have. Operations have no
// order among themselves unless one is awaited before the next begins.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(RemoteMemory counters, context.Remote(request.counters()));
//   VERBENA_CO_ASSIGN_OR_RETURN(uint64_t before, co_await counters.FetchAdd(8, 1));

#ifndef VERBENA_RPC_REMOTE_MEMORY_H_
#define VERBENA_RPC_REMOTE_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/remote_memory.pb.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/lease_access.h"  // IWYU pragma: export
#include "verbena/transport/memory/buffer.h"

namespace verbena {

class RemoteMemory;
class Scheduler;

namespace internal {
struct AtomicOperation;
class Endpoint;
class Link;
struct RemoteRange;

// The memory of `link`'s peer that `handle` names. INVALID_ARGUMENT for a handle that names
// nothing, FAILED_PRECONDITION for one of another link.
absl::StatusOr<RemoteMemory> RemoteOver(Link& link, const RemoteMemoryHandle& handle);
}  // namespace internal

class RemoteMemory {
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
  friend absl::StatusOr<RemoteMemory> internal::RemoteOver(internal::Link& link,
                                                           const RemoteMemoryHandle& handle);
  RemoteMemory() = default;

  static Task<absl::Status> ReadFrom(RemoteMemory memory, uint64_t offset, BufferView into);
  static Task<absl::Status> WriteTo(RemoteMemory memory, uint64_t offset, BufferView from);
  static Task<absl::StatusOr<uint64_t>> DoAtomic(RemoteMemory memory, uint64_t offset,
                                                 internal::AtomicOperation operation);
  absl::Status Check(const char* doing, LeaseAccess wanted, uint64_t offset, uint64_t bytes) const;
  // The link, if it is still there, and `scheduler` is that of its executor.
  absl::StatusOr<internal::Link*> LinkFor(const void* scheduler) const;
  internal::RemoteRange Within(uint64_t offset, uint64_t bytes) const;

  // Gone when the device has failed and was opened again.
  std::weak_ptr<const bool> endpoint_alive_;
  internal::Endpoint* endpoint_ = nullptr;
  const Scheduler* scheduler_ = nullptr;
  // The link's key.
  uint32_t slot_ = 0;
  uint32_t generation_ = 0;
  uint64_t peer_ = 0;
  uint64_t address_ = 0;
  uint64_t bytes_ = 0;
  uint32_t rkey_ = 0;
  LeaseAccess access_ = LeaseAccess::kNone;
};

}  // namespace verbena

#endif  // VERBENA_RPC_REMOTE_MEMORY_H_
