// PayloadMemory: the payload buffers of one executor on one device, in three budgets
// (memory_budgets.h).
//
// Memory that a peer may reach is registered for just that. Under strict leases it is registered
// for windows alone, so that no key opens a whole region. Owned by the Endpoint; buffers go home
// before it is destroyed. One thread, as a BufferPool says.

#ifndef VERBENA_TRANSPORT_LINK_PAYLOAD_MEMORY_H_
#define VERBENA_TRANSPORT_LINK_PAYLOAD_MEMORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/link/limits.h"
#include "verbena/transport/memory/buffer_pool.h"

namespace verbena::internal {

class DeviceContext;

// The IBV_ACCESS_* with which a program's memory serves all uses of PayloadMemory. `limits` as for
// PayloadMemory::Create().
int UserMemoryAccess(const DeviceContext& context, const LinkLimits& limits);

class PayloadMemory {
 public:
  // `limits` are derived: the lease level is not kAuto. Registers nothing yet.
  static absl::StatusOr<PayloadMemory> Create(Scheduler& scheduler, const DeviceContext& context,
                                              const LinkLimits& limits);

  // Payloads on their way out; servers may read them where they lie.
  BufferPool& send() const { return *send_; }
  // Payloads of requests on their way in.
  BufferPool& receive() const { return *receive_; }
  // Payloads of responses on their way in: leased to servers.
  BufferPool& landing() const { return *landing_; }

 private:
  PayloadMemory() = default;

  std::unique_ptr<BufferPool> send_;
  std::unique_ptr<BufferPool> receive_;
  std::unique_ptr<BufferPool> landing_;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_PAYLOAD_MEMORY_H_
