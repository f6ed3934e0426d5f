#include "verbena/rpc/memory.h"

#include "fmt/format.h"
#include "verbena/remote_memory.pb.h"
#include "verbena/rpc/call/memory.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/sync.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/leases.h"
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

Task<absl::StatusOr<Loan>> LendOver(Link& link, BufferView view, LeaseAccess access,
                                    TimePoint deadline) {
  return Loan::Open(link.endpoint(), link.key().slot, link.key().generation, view, BufferPin(view),
                    access, deadline);
}

}  // namespace internal

// The pin keeps the memory while a window is waited for.
Task<absl::StatusOr<Loan>> Loan::Open(internal::Endpoint& endpoint, uint32_t slot,
                                      uint32_t generation, BufferView view,
                                      [[maybe_unused]] internal::BufferPin pin, LeaseAccess access,
                                      TimePoint deadline) {
  VERBENA_CO_RETURN_IF_ERROR(Check(view, access));
  [[maybe_unused]] const auto use = endpoint.Use();
  const TimePoint began = endpoint.executor().now();
  const TimePoint limit = internal::WaitLimit(began, {.deadline = deadline});
  for (;;) {
    internal::Link* link = endpoint.OpenLink({slot, generation});
    if (link == nullptr) co_return Lost();
    VERBENA_CO_ASSIGN_OR_RETURN(internal::Lease * lease,
                                link->OpenLease(view, access, internal::LeaseUse::kLoan));
    if (lease != nullptr) {
      Loan loan;
      loan.over_ = {.gate = endpoint.gate(),
                    .executor = &endpoint.executor(),
                    .endpoint = &endpoint,
                    .slot = slot,
                    .generation = generation,
                    .identity = link->identity()};
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

Loan& Loan::operator=(Loan&& other) noexcept {
  if (this == &other) return *this;
  Drop();
  over_ = std::move(other.over_);
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
  handle.set_link(over_.identity);
  return handle;
}

internal::Link* Loan::LentOver::Open() const {
  if (!gate->open()) return nullptr;
  internal::Link* link = endpoint->OpenLink({slot, generation});
  return link != nullptr && link->identity() == identity ? link : nullptr;
}

// The endpoint may end at any time while another thread drops the loan, and then its leases have
// ended with it.
void Loan::Drop() {
  if (lease_ == nullptr) return;
  auto abandon = [over = over_, lease = std::exchange(lease_, nullptr)] {
    if (internal::Link* link = over.Open()) link->AbandonLease(*lease);
  };
  if (Scheduler::Current() == over_.executor) {
    abandon();
  } else {
    over_.gate->Post(std::move(abandon));
  }
}

Task<absl::Status> Loan::End() && { return EndOf(std::move(*this)); }

Task<absl::Status> Loan::EndOf(Loan loan) {
  if (loan.lease_ == nullptr) co_return absl::FailedPreconditionError("an empty Loan was ended");
  if ((co_await CurrentContext()).scheduler != loan.over_.executor) {
    co_return absl::FailedPreconditionError("a Loan is ended on the executor that it was made on");
  }
  internal::Link* link = loan.over_.Open();
  internal::Lease* lease = std::exchange(loan.lease_, nullptr);
  if (link == nullptr) co_return Lost();
  Ending ending(*link, *lease);
  absl::Status waited = co_await ending.Over();
  co_return waited.ok() && ending.lost() ? Lost() : waited;
}

}  // namespace verbena
