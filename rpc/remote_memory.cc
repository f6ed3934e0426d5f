#include "verbena/rpc/memory.h"

#include <limits>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/remote_memory.pb.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/one_sided_awaits.h"

namespace verbena {
namespace {

constexpr uint64_t kWord = sizeof(uint64_t);
constexpr LeaseAccess kAll = LeaseAccess::kWrite | LeaseAccess::kRead | LeaseAccess::kAtomic;

std::string AccessNames(LeaseAccess access) {
  std::string names;
  const auto add = [&](LeaseAccess one, const char* name) {
    if (Includes(access, one)) names += (names.empty() ? "" : ", ") + std::string(name);
  };
  add(LeaseAccess::kWrite, "write");
  add(LeaseAccess::kRead, "read");
  add(LeaseAccess::kAtomic, "atomic");
  return names.empty() ? "nothing" : names;
}

absl::Status CheckReads(const internal::Link& link) {
  if (link.max_reads() > 0) return absl::OkStatus();
  return absl::UnimplementedError(fmt::format(
      "{} and its peer's device have no READs with each other", link.endpoint().device_name()));
}

absl::Status CheckAtomics(const internal::Link& link) {
  if (link.has_atomics()) return absl::OkStatus();
  return absl::UnimplementedError(
      fmt::format("{} has no atomic operations", link.endpoint().device_name()));
}

}  // namespace

namespace internal {

absl::StatusOr<RemoteMemory> RemoteOver(Link& link, const RemoteMemoryHandle& handle) {
  if (handle.bytes() == 0 ||
      handle.bytes() > std::numeric_limits<uint64_t>::max() - handle.address()) {
    return absl::InvalidArgumentError(
        fmt::format("a handle of {} bytes at {:#x}", handle.bytes(), handle.address()));
  }
  if (handle.link() != link.peer_identity()) {
    return absl::FailedPreconditionError(
        "the handle is of another link: memory is lent to the other end of one link, and the link "
        "to it has changed since, or it is another channel's or executor's");
  }
  RemoteMemory memory;
  memory.endpoint_alive_ = link.endpoint().alive();
  memory.endpoint_ = &link.endpoint();
  memory.scheduler_ = &link.endpoint().executor();
  memory.slot_ = link.key().slot;
  memory.generation_ = link.key().generation;
  memory.peer_ = link.peer_identity();
  memory.address_ = handle.address();
  memory.bytes_ = handle.bytes();
  memory.rkey_ = handle.rkey();
  memory.access_ = static_cast<LeaseAccess>(handle.access() & static_cast<uint8_t>(kAll));
  return memory;
}

}  // namespace internal

absl::Status RemoteMemory::Check(const char* doing, LeaseAccess wanted, uint64_t offset,
                                 uint64_t bytes) const {
  if (!Includes(access_, wanted)) {
    return absl::InvalidArgumentError(
        fmt::format("{} remote memory that was lent for {}, not for {}: lend it with that "
                    "LeaseAccess, too",
                    doing, AccessNames(access_), AccessNames(wanted)));
  }
  if (offset <= bytes_ && bytes <= bytes_ - offset) return absl::OkStatus();
  return absl::OutOfRangeError(fmt::format("{} {} bytes at offset {} of {} bytes of remote memory",
                                           doing, bytes, offset, bytes_));
}

absl::StatusOr<internal::Link*> RemoteMemory::LinkFor(const void* scheduler) const {
  if (scheduler != scheduler_) {
    return absl::FailedPreconditionError(
        "remote memory is used on the executor of the link that it is reached over");
  }
  internal::Link* link =
      endpoint_alive_.expired() ? nullptr : endpoint_->OpenLink({slot_, generation_});
  if (link == nullptr || link->peer_identity() != peer_) {
    return absl::UnavailableError("the link to the remote memory was lost");
  }
  return link;
}

internal::RemoteRange RemoteMemory::Within(uint64_t offset, uint64_t bytes) const {
  return {.address = address_ + offset, .bytes = bytes, .rkey = rkey_};
}

Task<absl::Status> RemoteMemory::Read(uint64_t offset, BufferView into) const {
  return ReadFrom(*this, offset, into);
}

Task<absl::Status> RemoteMemory::Write(uint64_t offset, BufferView from) const {
  return WriteTo(*this, offset, from);
}

Task<absl::StatusOr<uint64_t>> RemoteMemory::CompareAndSwap(uint64_t offset, uint64_t expected,
                                                            uint64_t desired) const {
  return DoAtomic(*this, offset,
                  {.kind = internal::AtomicOperation::Kind::kCompareAndSwap,
                   .operand = expected,
                   .swap = desired});
}

Task<absl::StatusOr<uint64_t>> RemoteMemory::FetchAdd(uint64_t offset, uint64_t add) const {
  return DoAtomic(*this, offset,
                  {.kind = internal::AtomicOperation::Kind::kFetchAdd, .operand = add});
}

Task<absl::Status> RemoteMemory::ReadFrom(RemoteMemory memory, uint64_t offset, BufferView into) {
  VERBENA_CO_RETURN_IF_ERROR(memory.Check("reading", LeaseAccess::kRead, offset, into.size()));
  VERBENA_CO_ASSIGN_OR_RETURN(internal::Link * link,
                              memory.LinkFor((co_await CurrentContext()).scheduler));
  VERBENA_CO_RETURN_IF_ERROR(CheckReads(*link));
  if (into.empty()) co_return absl::OkStatus();
  VERBENA_CO_RETURN_IF_ERROR(CheckLocalMemory(*link, internal::Transfer::Direction::kRead, into));
  co_return co_await internal::TransferAwaiter(*link, internal::Transfer::Direction::kRead, into,
                                               memory.Within(offset, into.size()));
}

Task<absl::Status> RemoteMemory::WriteTo(RemoteMemory memory, uint64_t offset, BufferView from) {
  VERBENA_CO_RETURN_IF_ERROR(memory.Check("writing", LeaseAccess::kWrite, offset, from.size()));
  VERBENA_CO_ASSIGN_OR_RETURN(internal::Link * link,
                              memory.LinkFor((co_await CurrentContext()).scheduler));
  if (from.empty()) co_return absl::OkStatus();
  VERBENA_CO_RETURN_IF_ERROR(CheckLocalMemory(*link, internal::Transfer::Direction::kWrite, from));
  co_return co_await internal::TransferAwaiter(*link, internal::Transfer::Direction::kWrite, from,
                                               memory.Within(offset, from.size()));
}

Task<absl::StatusOr<uint64_t>> RemoteMemory::DoAtomic(RemoteMemory memory, uint64_t offset,
                                                      internal::AtomicOperation operation) {
  VERBENA_CO_RETURN_IF_ERROR(
      memory.Check("an atomic operation on", LeaseAccess::kAtomic, offset, kWord));
  if ((memory.address_ + offset) % kWord != 0) {
    co_return absl::InvalidArgumentError(
        fmt::format("an atomic operation at offset {} of remote memory at {:#x}: words lie at "
                    "multiples of 8",
                    offset, memory.address_));
  }
  VERBENA_CO_ASSIGN_OR_RETURN(internal::Link * link,
                              memory.LinkFor((co_await CurrentContext()).scheduler));
  VERBENA_CO_RETURN_IF_ERROR(CheckAtomics(*link));
  VERBENA_CO_RETURN_IF_ERROR(CheckReads(*link));
  co_return co_await internal::AtomicAwaiter(*link, operation, memory.Within(offset, kWord));
}

}  // namespace verbena
