#include "verbena/transport/link/payload_memory.h"

#include <infiniband/verbs.h>

#include <utility>

#include "verbena/transport/base/status.h"
#include "verbena/transport/link/device_context.h"

namespace verbena::internal {

namespace {

// The access flags of memory that peers may reach by a lease.
int LeasedAccess(const DeviceContext& context, const LinkLimits& limits) {
  if (limits.leases.level == LeaseLevel::kStrict)
    return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
  const int atomics = context.device().capabilities().atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0;
  return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | atomics;
}

// The access flags of memory that our READs fill. On iWARP the peer writes it (RFC 5040, 3.1).
int FilledAccess(const DeviceContext& context) {
  const bool iwarp = context.address().kind == LinkKind::kIwarp;
  return IBV_ACCESS_LOCAL_WRITE | (iwarp ? IBV_ACCESS_REMOTE_WRITE : 0);
}

}  // namespace

int UserMemoryAccess(const DeviceContext& context, const LinkLimits& limits) {
  return LeasedAccess(context, limits) | FilledAccess(context);
}

absl::StatusOr<PayloadMemory> PayloadMemory::Create(Scheduler& scheduler,
                                                    const DeviceContext& context,
                                                    const LinkLimits& limits) {
  const bool strict = limits.leases.level == LeaseLevel::kStrict;
  const int leased = LeasedAccess(context, limits);
  const int filled = FilledAccess(context);

  PayloadMemory memory;
  const auto make = [&](std::unique_ptr<BufferPool>& pool, const char* name, size_t budget,
                        int access, bool exposed) {
    VERBENA_ASSIGN_OR_RETURN(pool, BufferPool::Create(scheduler, context.device(), context.pd(),
                                                      {.name = name,
                                                       .budget_bytes = budget,
                                                       .access = access,
                                                       .exposed = exposed,
                                                       .control = &context.control()}));
    return absl::OkStatus();
  };
  absl::Status status = make(memory.send_, "send", limits.memory.send_bytes, leased, true);
  if (status.ok()) {
    // Clients write to what they were granted. Without grants, we READ all of it.
    const bool grants = limits.leases.granted_bytes_per_client > 0;
    const int written = strict ? IBV_ACCESS_MW_BIND : IBV_ACCESS_REMOTE_WRITE;
    status = make(memory.receive_, "receive", limits.memory.receive_bytes,
                  filled | (grants ? written : 0), grants);
  }
  if (status.ok())
    status = make(memory.landing_, "landing", limits.memory.landing_bytes, leased, true);
  VERBENA_RETURN_IF_ERROR(status);
  return memory;
}

}  // namespace verbena::internal
