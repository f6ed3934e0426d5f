#include "verbena/transport/link/leases.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/base/list.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/link/transfers.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {
namespace {

// A key's low 8 bits count its bindings (InfiniBand specification, volume 1, 10.6.7.2.7). One of
// the 256 is what the window was allocated with.
constexpr uint32_t kMaxBindings = 255;

// A device that is short of windows is short for each link, and peers connect as often as they
// like.
void LogShortage(const std::string& message) {
  static thread_local ThrottledLog log(LogComponent::kLink,
                                       {.lines = 1, .interval = std::chrono::seconds(10)});
  VERBENA_LOG_THROTTLED(log, kWarning, Clock::Real().Now(), message);
}

unsigned WindowAccess(LeaseAccess access) {
  unsigned flags = 0;
  if (Includes(access, LeaseAccess::kWrite)) flags |= IBV_ACCESS_REMOTE_WRITE;
  if (Includes(access, LeaseAccess::kRead)) flags |= IBV_ACCESS_REMOTE_READ;
  if (Includes(access, LeaseAccess::kAtomic)) flags |= IBV_ACCESS_REMOTE_ATOMIC;
  return flags;
}

// As the peer cannot change memory unless we can.
bool Changes(LeaseAccess access) {
  return (access & (LeaseAccess::kWrite | LeaseAccess::kAtomic)) != LeaseAccess::kNone;
}

}  // namespace

WindowBatch AllocateWindows(Device& device, ibv_pd* pd, uint32_t count) {
  WindowBatch batch;
  batch.windows.reserve(count);
  while (batch.windows.size() < count) {
    absl::StatusOr<ibv_mw*> mw = device.AllocMw(pd);
    if (!mw.ok()) {
      batch.failure = mw.status();
      break;
    }
    batch.windows.emplace_back(device, *mw);
  }
  return batch;
}

WindowPool::WindowPool(uint32_t max_windows) : max_windows_(max_windows) {
  all_.reserve(max_windows);
  blank_.reserve(max_windows);
  free_.reserve(size_t{2} * max_windows);
}

MemoryWindow* WindowPool::Take() {
  if (free() == 0) return nullptr;
  MemoryWindow& window = *free_[first_free_++];
  // Refill() may have lowered the bound below it.
  if (first_free_ >= max_windows_) {
    free_.erase(free_.begin(), free_.begin() + static_cast<ptrdiff_t>(first_free_));
    first_free_ = 0;
  }
  ++window.bindings;
  window.rkey = ibv_inc_rkey(window.rkey);
  return &window;
}

void WindowPool::GiveBack(MemoryWindow& window) {
  VERBENA_CHECK(free() < allocated_) << "a window is given back twice, key " << window.rkey;
  if (window.bindings < kMaxBindings) {
    free_.push_back(&window);
    return;
  }
  worn_.push_back(std::move(window.mw));
  blank_.push_back(&window);
  --allocated_;
}

uint32_t WindowPool::BeginRefill(uint32_t wanted) {
  const uint32_t enough = std::min(max_windows_, std::max(wanted, kSpareWindows));
  if (expected_ > 0 || free() >= enough || allocated_ >= max_windows_) return 0;
  expected_ = std::min(max_windows_ - allocated_, std::max(enough - free(), kSpareWindows));
  return expected_;
}

void WindowPool::Refill(WindowBatch batch) {
  expected_ = 0;
  failure_ = std::move(batch.failure);
  for (MwHandle& mw : batch.windows) {
    VERBENA_CHECK(allocated_ < max_windows_) << "of " << max_windows_ << " windows";
    MemoryWindow* window = nullptr;
    if (blank_.empty()) {
      all_.push_back(std::make_unique<MemoryWindow>());
      window = all_.back().get();
    } else {
      window = blank_.back();
      blank_.pop_back();
    }
    *window = {.mw = std::move(mw)};
    window->rkey = window->mw->rkey;
    ++allocated_;
    free_.push_back(window);
  }
  if (failure_.ok() || allocated_ == 0 || allocated_ == max_windows_) return;
  LogShortage(fmt::format("a link gets {} memory windows instead of {}: {}", allocated_,
                          max_windows_, failure_.ToString()));
  max_windows_ = allocated_;
}

std::vector<MwHandle> WindowPool::TakeWorn() { return std::exchange(worn_, {}); }

std::vector<MwHandle> WindowPool::TakeAll() {
  std::vector<MwHandle> taken = TakeWorn();
  for (const std::unique_ptr<MemoryWindow>& window : all_) {
    if (window->mw) taken.push_back(std::move(window->mw));
  }
  free_.clear();
  first_free_ = 0;
  allocated_ = max_windows_ = 0;
  return taken;
}

LeaseRequests::LeaseRequests(uint32_t max_windows)
    : requests_(kMaxChain), ending_(std::bit_ceil(max_windows)) {
  bindings_.reserve(kMaxChain);
  invalidations_.reserve(max_windows);
}

uint32_t LeaseRequests::Prepare(uint32_t slots) {
  prepared_ = 0;
  for (const Binding& binding : bindings_) {
    ibv_send_wr& request = requests_[prepared_++];
    request.opcode = IBV_WR_BIND_MW;
    request.send_flags = 0;
    // Shares its place with the key of an invalidation, and rxe's provider refuses a binding with
    // one.
    request.imm_data = 0;
    request.bind_mw = {
        .mw = binding.window->mw.get(), .rkey = binding.window->rkey, .bind_info = binding.info};
  }
  prepared_bindings_ = prepared_;
  const uint32_t room = std::min(std::max(slots, prepared_), kMaxChain);
  for (size_t i = 0; i < invalidations_.size() && prepared_ < room; ++i) {
    ibv_send_wr& request = requests_[prepared_++];
    request.opcode = IBV_WR_LOCAL_INV;
    request.send_flags = 0;
    request.invalidate_rkey = invalidations_[i]->terms().rkey;
  }
  if (prepared_ == 0) return 0;
  for (uint32_t i = 0; i < prepared_; ++i) requests_[i].next = &requests_[i] + 1;
  requests_[prepared_ - 1].next = nullptr;
  if (prepared_ > prepared_bindings_) requests_[prepared_ - 1].send_flags = IBV_SEND_SIGNALED;
  return prepared_;
}

bool LeaseRequests::Unbind(const MemoryWindow& window) {
  return std::erase_if(bindings_, [&window](const Binding& binding) {
           return binding.window == &window;
         }) != 0;
}

bool LeaseRequests::Placed(uint32_t last_position) {
  const uint32_t count = prepared_ - prepared_bindings_;
  for (uint32_t i = 0; i < count; ++i) {
    ending_[Index(tail_++)] = {last_position + 1, invalidations_[i]};
  }
  invalidations_.erase(invalidations_.begin(), invalidations_.begin() + count);
  return count > 0;
}

void LeaseRequests::Posted() {
  // The provider reads from the window which key the WR replaced, so it changes only now.
  for (uint32_t i = 0; i < prepared_bindings_; ++i) {
    MemoryWindow& window = *bindings_[i].window;
    window.mw->rkey = window.rkey;
  }
  bindings_.erase(bindings_.begin(), bindings_.begin() + prepared_bindings_);
  prepared_bindings_ = 0;
}

void LeaseRequests::Clear() {
  bindings_.clear();
  prepared_bindings_ = 0;
  invalidations_.clear();
  head_ = tail_;
}

LeaseTable::LeaseTable(Device& device, ibv_pd* pd, const LeaseLimits& limits)
    : device_(device),
      limits_(limits),
      pd_(pd),
      windows_(limits.windows_per_link),
      requests_(limits.windows_per_link) {}

LeaseTable::~LeaseTable() {
  VERBENA_CHECK(open_.empty()) << open_.size() << " leases are left";
  for (Lease* lease : pool_) UnpoisonMemory(lease, sizeof(*lease));
}

uint32_t LeaseTable::free() const {
  if (limits_.level != LeaseLevel::kStrict) return std::numeric_limits<uint32_t>::max();
  constexpr uint32_t kMaxChain = LeaseRequests::kMaxChain;
  const uint32_t windows = windows_.failure().ok() ? windows_.free() : kMaxChain;
  return std::min(windows, kMaxChain - bindings_due());
}

uint32_t LeaseTable::BeginRefill(uint32_t wanted) {
  return limits_.level == LeaseLevel::kStrict ? windows_.BeginRefill(wanted) : 0;
}

absl::Status LeaseTable::Check(const BufferView& view, LeaseAccess access) const {
  if (Includes(access, LeaseAccess::kAtomic) && !device_.capabilities().atomics) {
    return absl::UnimplementedError(fmt::format(
        "{} has no atomic operations, for which memory was to be leased", device_.name()));
  }
  VERBENA_RETURN_IF_ERROR(CheckRegistered(view, pd_, device_));
  int needed = limits_.level == LeaseLevel::kStrict ? static_cast<int>(IBV_ACCESS_MW_BIND)
                                                    : static_cast<int>(WindowAccess(access));
  if (Changes(access)) needed |= IBV_ACCESS_LOCAL_WRITE;
  if ((view.region().access() & needed) == needed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("the payload's memory is registered with access {:#x}, but leasing it to the "
                  "peer takes {:#x} (IBV_ACCESS_*)",
                  view.region().access(), needed));
}

Lease& LeaseTable::NewLease() {
  Lease* lease = nullptr;
  if (pool_.empty()) {
    all_.push_back(std::make_unique<Lease>());
    lease = all_.back().get();
  } else {
    lease = pool_.back();
    pool_.pop_back();
    UnpoisonMemory(lease, sizeof(*lease));
  }
  lease->index_ = open_.size();
  open_.push_back(lease);
  return *lease;
}

// Loans may stay for long: they leave half of the windows to calls.
absl::Status LeaseTable::CheckBounds(LeaseUse use) const {
  if (use == LeaseUse::kLoan && loans_ >= limits_.windows_per_link / 2) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} loans are with this peer, half of LeaseLimits::windows_per_link: no more", loans_));
  }
  if (quarantined_bytes_ >= limits_.quarantine_bytes) {
    return absl::ResourceExhaustedError(
        fmt::format("{} bytes of memory wait for this peer to end what was given up; no more is "
                    "leased to it",
                    quarantined_bytes_));
  }
  return absl::OkStatus();
}

absl::StatusOr<Lease*> LeaseTable::Open(const BufferView& view, LeaseAccess access, LeaseUse use) {
  VERBENA_RETURN_IF_ERROR(Check(view, access));
  VERBENA_RETURN_IF_ERROR(CheckBounds(use));
  if (free() == 0) return nullptr;
  MemoryWindow* window = nullptr;
  if (limits_.level == LeaseLevel::kStrict) {
    window = windows_.Take();
    if (window == nullptr && !windows_.failure().ok()) return windows_.failure();
    if (window == nullptr) return nullptr;
  }
  Lease& lease = NewLease();
  lease.terms_ = {.address = reinterpret_cast<uintptr_t>(view.data()),
                  .bytes = view.size(),
                  .rkey = window != nullptr ? window->rkey : view.region().rkey()};
  lease.pin_ = BufferPin(view);
  lease.window_ = window;
  lease.listener_ = nullptr;
  lease.use_ = use;
  if (use == LeaseUse::kLoan) ++loans_;
  lease.invalidated_ = false;
  lease.ended_ = false;
  lease.abandoned_at_ = kNever;
  if (window != nullptr) {
    requests_.Bind(*window, {.mr = view.region().mr(),
                             .addr = lease.terms_.address,
                             .length = lease.terms_.bytes,
                             .mw_access_flags = WindowAccess(access)});
  }
  return &lease;
}

bool LeaseTable::End(Lease& lease, LeaseListener* listener) {
  VERBENA_CHECK(!lease.ended_) << "a lease is ended twice, key " << lease.terms_.rkey;
  lease.ended_ = true;
  lease.listener_ = listener;
  const bool is_over =
      lease.window_ == nullptr || lease.invalidated_ || requests_.Unbind(*lease.window_);
  if (is_over) {
    Release(lease);
  } else {
    requests_.Invalidate(lease);
  }
  return is_over;
}

void LeaseTable::Abandon(Lease& lease, TimePoint now) {
  lease.abandoned_at_ = now;
  quarantined_bytes_ += lease.terms_.bytes;
}

void LeaseTable::OnInvalidated(uint32_t rkey) {
  for (Lease* lease : open_) {
    if (lease->window_ == nullptr || lease->terms_.rkey != rkey) continue;
    lease->invalidated_ = true;
    return;
  }
}

absl::Status LeaseTable::CheckGrace(TimePoint now) {
  if (quarantined_bytes_ == 0) return absl::OkStatus();
  for (size_t i = open_.size(); i-- > 0;) {
    // Ending one may take it, and no other, out of the part of the list that is still to be seen.
    Lease* lease = open_[i];
    if (lease->abandoned_at_ == kNever || now - lease->abandoned_at_ < limits_.grace) continue;
    // Its invalidation is this side's work, and Link::CheckAcknowledged() sees if that is held up.
    if (lease->ended_) continue;
    if (lease->use_ == LeaseUse::kLoan && lease->window_ != nullptr) {
      End(*lease, nullptr);
      continue;
    }
    return absl::DeadlineExceededError(fmt::format(
        "the peer has not ended a call or loan that was given up {} ms ago, and holds {} bytes of "
        "our memory",
        std::chrono::duration_cast<std::chrono::milliseconds>(now - lease->abandoned_at_).count(),
        lease->terms_.bytes));
  }
  return absl::OkStatus();
}

void LeaseTable::Release(Lease& lease) {
  if (lease.abandoned_at_ != kNever) quarantined_bytes_ -= lease.terms_.bytes;
  if (lease.use_ == LeaseUse::kLoan) --loans_;
  if (lease.window_ != nullptr) windows_.GiveBack(*lease.window_);
  LeaseListener* listener = lease.listener_;
  lease.pin_.Reset();
  open_[lease.index_] = open_.back();
  open_[lease.index_]->index_ = lease.index_;
  open_.pop_back();
  pool_.push_back(&lease);
  PoisonMemory(&lease, sizeof(lease));
  if (listener != nullptr) listener->OnLeaseEnded(lease);
}

void LeaseTable::Lose() {
  for (Lease* lease : open_) {
    if (LeaseListener* listener = std::exchange(lease->listener_, nullptr)) {
      listener->OnLeaseLost(*lease);
    }
  }
}

LeaseTable::Remains LeaseTable::TakeAll() {
  Remains remains;
  remains.pins.reserve(open_.size());
  for (Lease* lease : open_) remains.pins.push_back(std::move(lease->pin_));
  open_.clear();
  quarantined_bytes_ = loans_ = 0;
  requests_.Clear();
  remains.windows = windows_.TakeAll();
  return remains;
}

}  // namespace verbena::internal
