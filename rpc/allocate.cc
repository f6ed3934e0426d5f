#include "verbena/rpc/allocate.h"

#include <utility>

#include "fmt/format.h"
#include "verbena/transport/coro/deadline.h"

namespace verbena {
namespace {

Task<absl::StatusOr<Buffer>> Wait(BufferPool& pool, size_t bytes) {
  co_return co_await pool.Allocate(bytes);
}

}  // namespace

Task<absl::StatusOr<Buffer>> AllocateUntil(BufferPool& pool, size_t bytes, TimePoint deadline) {
  absl::StatusOr<Buffer> now = pool.TryAllocate(bytes);
  if (now.ok() || !absl::IsResourceExhausted(now.status())) co_return now;
  if (deadline != kNever) co_return co_await WithDeadline(Wait(pool, bytes), deadline);
  absl::StatusOr<Buffer> buffer = co_await WithDeadline(Wait(pool, bytes), kMaxMemoryWait);
  if (!absl::IsDeadlineExceeded(buffer.status())) co_return buffer;
  co_return absl::ResourceExhaustedError(
      fmt::format("no {} bytes of {} memory came free within {} s", bytes, pool.name(),
                  std::chrono::duration_cast<std::chrono::seconds>(kMaxMemoryWait).count()));
}

}  // namespace verbena
