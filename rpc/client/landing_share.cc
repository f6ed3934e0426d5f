#include "verbena/rpc/client/landing_share.h"

#include <algorithm>
#include <chrono>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "verbena/transport/base/status_macros.h"
#include "verbena/transport/coro/deadline.h"
#include "verbena/transport/memory/size_class.h"

namespace verbena::internal {
namespace {

Task<absl::Status> Acquire(Semaphore& semaphore, size_t permits) {
  co_return co_await semaphore.Acquire(permits);
}

}  // namespace

size_t LandingShare::ShareOf(size_t capacity) const { return std::min(capacity, max_bytes_); }

Task<absl::StatusOr<Buffer>> LandingShare::Allocate(const Endpoint& endpoint, size_t bytes,
                                                    MemoryWait wait) {
  // The device may fail meanwhile.
  [[maybe_unused]] const auto use = endpoint.Use();
  BufferPool& pool = endpoint.memory().landing();
  // As many bytes as OnBlockHome() will hear when the buffer's memory is free.
  const size_t share = ShareOf(SizeClassBytes(SizeClassOf(bytes)));
  if (!bytes_.TryAcquire(share)) {
    const TimePoint began = endpoint.executor().now();
    const TimePoint limit = WaitLimit(began, wait);
    const absl::Status waited = co_await WithDeadline(Acquire(bytes_, share), limit);
    const TimePoint now = endpoint.executor().now();
    // An earlier deadline is the caller's own.
    if (absl::IsDeadlineExceeded(waited) && now >= limit) co_return Exhausted(bytes, now - began);
    VERBENA_CO_RETURN_IF_ERROR(waited);
    // One limit for both waits.
    wait.deadline = kNever;
    wait.longest = std::max(limit - now, Duration::zero());
  }
  absl::Cleanup release = [this, share] { bytes_.Release(share); };
  VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await AllocateUntil(endpoint, pool, bytes, wait));
  std::move(release).Cancel();
  Count(buffer);
  co_return buffer;
}

absl::StatusOr<Buffer> LandingShare::TryAllocate(const Endpoint& endpoint, size_t bytes) {
  const size_t share = ShareOf(SizeClassBytes(SizeClassOf(bytes)));
  if (!bytes_.TryAcquire(share)) {
    return absl::ResourceExhaustedError("the server's share of landings is taken");
  }
  absl::StatusOr<Buffer> buffer = endpoint.memory().landing().TryAllocate(bytes);
  if (buffer.ok()) {
    Count(*buffer);
  } else {
    bytes_.Release(share);
  }
  return buffer;
}

void LandingShare::Count(Buffer& buffer) {
  if (landings_++ == 0) self_ = shared_from_this();
  buffer.set_listener(*this);
}

void LandingShare::OnBlockHome(size_t capacity) {
  bytes_.Release(ShareOf(capacity));
  if (--landings_ == 0) self_.reset();  // perhaps the end of this
}

absl::Status LandingShare::Exhausted(size_t bytes, Duration waited) const {
  return absl::ResourceExhaustedError(fmt::format(
      "no landing of {} bytes for the response within {} ms: landings that {} asked for take {} of "
      "the {} bytes that one server may have, which is half of LinkLimits::memory.landing_bytes. "
      "Make fewer such calls at once, pass response_payload_into, or raise landing_bytes",
      bytes, std::chrono::duration_cast<std::chrono::milliseconds>(waited).count(), server_,
      max_bytes_ - bytes_.available(), max_bytes_));
}

}  // namespace verbena::internal
