#include "verbena/rpc/call/lending.h"

#include <limits>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/remote_memory.pb.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/rpc/memory.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/leases.h"
#include "verbena/transport/link/link.h"
#include "verbena/transport/link/link_ref.h"
#include "verbena/transport/link/one_sided_awaits.h"

namespace verbena {
namespace {

absl::Status Lost() {
  return absl::UnavailableError("the link over which memory was lent is lost");
}

absl::Status Check(const BufferView& view, LeaseAccess access) {
  if (view.empty()) return absl::InvalidArgumentError("no memory was given to be lent");
  if (access == LeaseAccess::kNone) {
    return absl::InvalidArgumentError("memory was to be lent for nothing: LeaseAccess::kNone");
  }
  if (Includes(access, LeaseAccess::kAtomic) &&
      reinterpret_cast<uintptr_t>(view.data()) % sizeof(uint64_t) != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "memory at {} was to be lent for atomic operations, which take words at multiples of 8",
        static_cast<const void*>(view.data())));
  }
  return absl::OkStatus();
}

Task<absl::Status> FreeLease(internal::Link& link) {
  co_return co_await internal::LeaseAwaiter(link, 1);
}

// Waits for the end of one lease. Lives in the waiting coroutine's frame.
class Ending final : private internal::LeaseListener {
 public:
  Ending(internal::Link& link, internal::Lease& lease) : lease_(&lease) {
    link.EndLease(lease, this);
  }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;
  ~Ending() override {
    if (lease_ != nullptr) internal::LeaseTable::Forget(*lease_);
  }

  Event::Awaiter Over() { return over_.Wait(); }
  bool lost() const { return lost_; }

 private:
  void OnLeaseEnded(const internal::Lease&) override {
    lease_ = nullptr;
    over_.Set();
  }
  void OnLeaseLost(const internal::Lease& lease) override {
    lost_ = true;
    OnLeaseEnded(lease);
  }

  internal::Lease* lease_;
  bool lost_ = false;
  Event over_;
};

}  // namespace

namespace internal {

Task<absl::StatusOr<Loan>> Lending::Lend(Link& link, BufferView view, LeaseAccess access,
                                         TimePoint deadline) {
  return LendOver(LinkRef(link), link.endpoint(), view, BufferPin(view), access, deadline);
}

Task<absl::StatusOr<Loan>> Lending::LendOver(LinkRef over, Endpoint& endpoint, BufferView view,
                                             [[maybe_unused]] BufferPin pin, LeaseAccess access,
                                             TimePoint deadline) {
  VERBENA_CO_RETURN_IF_ERROR(Check(view, access));
  [[maybe_unused]] const auto use = endpoint.Use();
  const TimePoint began = endpoint.executor().now();
  const TimePoint limit = WaitLimit(began, {.deadline = deadline});
  for (;;) {
    Link* link = over.Open();
    if (link == nullptr) co_return Lost();
    VERBENA_CO_ASSIGN_OR_RETURN(Lease * lease, link->OpenLease(view, access, LeaseUse::kLoan));
    if (lease != nullptr) {
      Loan loan;
      loan.over_ = std::move(over);
      loan.gate_ = endpoint.gate();
      loan.address_ = lease->terms().address;
      loan.bytes_ = lease->terms().bytes;
      loan.rkey_ = lease->terms().rkey;
      loan.access_ = access;
      loan.lease_ = lease;
      co_return loan;
    }
    absl::Status freed = co_await WithDeadline(FreeLease(*link), limit);
    if (absl::IsDeadlineExceeded(freed) && endpoint.executor().now() >= limit) {
      freed = absl::ResourceExhaustedError(
          fmt::format("no memory window of this link came free within {} ms; {} leases are open: "
                      "end loans, or raise LeaseLimits::windows_per_link",
                      std::chrono::duration_cast<std::chrono::milliseconds>(limit - began).count(),
                      endpoint.leases()));
    }
    VERBENA_CO_RETURN_IF_ERROR(freed);
  }
}

}  // namespace internal

Loan& Loan::operator=(Loan&& other) noexcept {
  if (this == &other) return *this;
  Drop();
  over_ = std::move(other.over_);
  gate_ = std::move(other.gate_);
  address_ = other.address_;
  bytes_ = other.bytes_;
  rkey_ = other.rkey_;
  access_ = other.access_;
  lease_ = std::exchange(other.lease_, nullptr);
  return *this;
}

RemoteMemoryHandle Loan::handle() const {
  RemoteMemoryHandle handle;
  if (lease_ == nullptr) return handle;
  handle.set_address(address_);
  handle.set_bytes(bytes_);
  handle.set_rkey(rkey_);
  handle.set_access(static_cast<uint32_t>(access_));
  handle.set_link(over_.identity());
  return handle;
}

// The endpoint may end at any time while another thread drops the loan, and then its leases have
// ended with it.
void Loan::Drop() {
  if (lease_ == nullptr) return;
  auto abandon = [over = over_, lease = std::exchange(lease_, nullptr)] {
    if (internal::Link* link = over.Open()) link->AbandonLease(*lease);
  };
  if (over_.IsOn(Scheduler::Current())) {
    abandon();
  } else {
    gate_->Post(std::move(abandon));
  }
}

Task<absl::Status> Loan::End() && { return EndOf(std::move(*this)); }

Task<absl::Status> Loan::EndOf(Loan loan) {
  if (loan.lease_ == nullptr) co_return absl::FailedPreconditionError("an empty Loan was ended");
  if (!loan.over_.IsOn((co_await CurrentContext()).scheduler)) {
    co_return absl::FailedPreconditionError("a Loan is ended on the executor that it was made on");
  }
  internal::Link* link = loan.over_.Open();
  internal::Lease* lease = std::exchange(loan.lease_, nullptr);
  if (link == nullptr) co_return Lost();
  Ending ending(*link, *lease);
  absl::Status waited = co_await ending.Over();
  co_return waited.ok() && ending.lost() ? Lost() : waited;
}

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

absl::StatusOr<RemoteMemory> Lending::Remote(Link& link, const RemoteMemoryHandle& handle) {
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
  memory.over_ = LinkRef(link);
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

absl::StatusOr<internal::Link*> RemoteMemory::LinkFor(const Scheduler* scheduler) const {
  if (!over_.IsOn(scheduler)) {
    return absl::FailedPreconditionError(
        "remote memory is used on the executor of the link that it is reached over");
  }
  internal::Link* link = over_.Open();
  if (link == nullptr) return absl::UnavailableError("the link to the remote memory was lost");
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
