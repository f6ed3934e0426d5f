// LandingShare: the landing memory that one server may have asked one executor for.
//
// A server whose response needs more memory than its call leased asks for a landing, and names its
// size. A server that asks and never answers would take all of the memory. So each connection has a
// bound for such landings. A landing counts until its memory is free again: also in quarantine, and
// while the caller keeps the payload in it. Shared by a connection and its calls; on its executor's
// thread.

#ifndef VERBENA_RPC_CLIENT_LANDING_SHARE_H_
#define VERBENA_RPC_CLIENT_LANDING_SHARE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/rpc/call/allocate.h"
#include "verbena/transport/base/clock.h"
#include "verbena/transport/coro/semaphore.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {

class LandingShare final : public std::enable_shared_from_this<LandingShare>,
                           private BlockListener {
 public:
  // `server` is for error messages.
  LandingShare(std::string server, size_t max_bytes)
      : server_(std::move(server)), max_bytes_(max_bytes), bytes_(max_bytes) {}
  LandingShare(const LandingShare&) = delete;
  LandingShare& operator=(const LandingShare&) = delete;

  // A buffer of `bytes` from the landing memory of `endpoint`. RESOURCE_EXHAUSTED if `wait` ends
  // before there is room within the bound, and memory: the message says who holds how much. A
  // buffer that is larger than the bound takes all of it. The share outlives the Task.
  Task<absl::StatusOr<Buffer>> Allocate(const Endpoint& endpoint, size_t bytes, MemoryWait wait);
  // The same without waiting.
  absl::StatusOr<Buffer> TryAllocate(const Endpoint& endpoint, size_t bytes);

 private:
  void OnBlockHome(size_t capacity) override;
  size_t ShareOf(size_t capacity) const;
  // Counts `buffer`, whose share is taken, until its memory is free.
  void Count(Buffer& buffer);
  absl::Status Exhausted(size_t bytes, Duration waited) const;

  const std::string server_;
  const size_t max_bytes_;
  Semaphore bytes_;
  // While there are landings, which may outlive the connection.
  size_t landings_ = 0;
  std::shared_ptr<LandingShare> self_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_LANDING_SHARE_H_
