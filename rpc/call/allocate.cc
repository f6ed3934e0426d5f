#include "verbena/rpc/call/allocate.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {
namespace {

Task<absl::StatusOr<Buffer>> Wait(BufferPool& pool, size_t bytes) {
  co_return co_await pool.Allocate(bytes);
}

// Whoever gave up the wait may have gone, and the listener with it.
Task<absl::Status> TakeAll(QuotaHold& hold, ShortageListener* listener) {
  const CancelScope* const scope = (co_await CurrentContext()).cancel;
  while (const Quota* quota = hold.missing()) {
    if (scope != nullptr && scope->requested()) co_return scope->status();
    if (listener != nullptr && !quota->HasRoomFor(hold.wanted())) listener->OnQuotaShort(*quota);
    VERBENA_CO_RETURN_IF_ERROR(co_await hold.TakeNext());
  }
  co_return absl::OkStatus();
}

std::string Holders(const Endpoint& endpoint, const BufferPoolStats& stats,
                    const MemoryHolders* holders) {
  if (holders == nullptr) {
    return fmt::format("{} leases are open, and the application has the rest", endpoint.leases());
  }
  const size_t known = std::min(stats.bytes_in_use, holders->grants + holders->transfers);
  return fmt::format("{} by handlers, {} in landings that clients were granted, {} in transfers",
                     stats.bytes_in_use - known, holders->grants, holders->transfers);
}

// Why the pool has no more memory than it has. If its budget is the reason, the remedy.
std::string Growth(const BufferPool& pool, const BufferPoolStats& stats) {
  if (stats.growing_bytes > 0) {
    return fmt::format(". The device is still registering {} bytes more", stats.growing_bytes);
  }
  if (!pool.growth_failure().ok()) return ". " + std::string(pool.growth_failure().message());
  return fmt::format(". Raise LinkLimits::memory.{}_bytes, or keep less in flight", pool.name());
}

absl::Status Exhausted(const Endpoint& endpoint, const BufferPool& pool, size_t bytes,
                       Duration waited, const MemoryHolders* holders) {
  const BufferPoolStats stats = pool.stats();
  const std::string text = fmt::format(
      "no {} bytes of {} memory came free within {} ms: of its budget of {} bytes {} are in use "
      "({}), and {} others wait{}{}",
      bytes, pool.name(), std::chrono::duration_cast<std::chrono::milliseconds>(waited).count(),
      stats.budget_bytes, stats.bytes_in_use, Holders(endpoint, stats, holders), stats.waiting,
      pool.IsLarge(bytes)
          ? ". So many bytes in one piece come free late, and requests for at most a "
            "sixteenth of the budget pass this one"
          : "",
      Growth(pool, stats));
  // One per executor's thread.
  static thread_local ThrottledLog log(LogComponent::kMemory,
                                       {.lines = 1, .interval = std::chrono::seconds(10)});
  VERBENA_LOG_THROTTLED(log, kWarning, endpoint.executor().now(), text,
                        {{"device", endpoint.device_name()}, {"pool", pool.name()}});
  return absl::ResourceExhaustedError(text);
}

// The pool has no memory now.
Task<absl::StatusOr<Buffer>> AwaitMemory(const Endpoint& endpoint, BufferPool& pool, size_t bytes,
                                         MemoryWait wait) {
  if (wait.listener != nullptr) wait.listener->OnPoolShort();
  // The device may fail meanwhile.
  [[maybe_unused]] const auto use = endpoint.Use();
  const TimePoint began = endpoint.executor().now();
  const TimePoint limit = WaitLimit(began, wait);
  absl::StatusOr<Buffer> buffer = co_await WithDeadline(Wait(pool, bytes), limit);
  const TimePoint ended = endpoint.executor().now();
  // An earlier deadline is the caller's own.
  if (!absl::IsDeadlineExceeded(buffer.status()) || ended < limit) co_return buffer;
  co_return Exhausted(endpoint, pool, bytes, ended - began, wait.holders);
}

}  // namespace

TimePoint WaitLimit(TimePoint now, const MemoryWait& wait) {
  const TimePoint longest = SaturatingAdd(now, wait.longest);
  if (wait.deadline == kNever) return longest;
  return std::min(longest, wait.deadline - (wait.deadline - now) / 8);
}

Task<absl::StatusOr<Buffer>> AllocateUntil(const Endpoint& endpoint, BufferPool& pool, size_t bytes,
                                           MemoryWait wait) {
  absl::StatusOr<Buffer> now = pool.TryAllocate(bytes);
  if (now.ok() || !absl::IsResourceExhausted(now.status())) co_return now;
  co_return co_await AwaitMemory(endpoint, pool, bytes, wait);
}

Task<absl::StatusOr<Buffer>> AllocateWithin(QuotaHold& hold, const Endpoint& endpoint,
                                            BufferPool& pool, size_t bytes, MemoryWait wait) {
  // The device may fail meanwhile.
  [[maybe_unused]] const auto use = endpoint.Use();
  if (!hold && !hold.TryTake()) {
    const TimePoint began = endpoint.executor().now();
    const TimePoint limit = WaitLimit(began, wait);
    const absl::Status waited = co_await WithDeadline(TakeAll(hold, wait.listener), limit);
    const TimePoint now = endpoint.executor().now();
    // An earlier deadline is the caller's own.
    if (absl::IsDeadlineExceeded(waited) && now >= limit) {
      if (wait.refused != nullptr) ++*wait.refused;
      co_return hold.missing()->Exhausted(hold.wanted(), bytes, now - began);
    }
    VERBENA_CO_RETURN_IF_ERROR(waited);
    // One limit for both waits.
    wait.deadline = kNever;
    wait.longest = std::max(limit - now, Duration::zero());
  }
  absl::StatusOr<Buffer> buffer = pool.TryAllocate(bytes);
  if (buffer.ok() || !absl::IsResourceExhausted(buffer.status())) co_return buffer;
  co_return co_await AwaitMemory(endpoint, pool, bytes, wait);
}

}  // namespace verbena::internal
