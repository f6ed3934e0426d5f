#include "verbena/transport/link/register_memory.h"

#include <utility>

#include "verbena/transport/device/control_pool.h"
#include "verbena/transport/link/device_context.h"

namespace verbena::internal {

Task<absl::StatusOr<std::unique_ptr<RegisteredMemory>>> RegisterMemory(const DeviceContext& context,
                                                                       void* memory, size_t bytes,
                                                                       int access,
                                                                       Scheduler* home) {
  co_return co_await context.control().Run(
      ControlKind::kMemory, memory,
      [&device = context.device(), pd = context.pd(), memory, bytes, access, home] {
        return RegisteredMemory::Register(device, pd, memory, bytes, access, home);
      });
}

Task<void> DeregisterMemory(const DeviceContext& context,
                            std::unique_ptr<RegisteredMemory> memory) {
  // Takes the memory out of its ring here, on the home thread. The device, which may take long,
  // comes later.
  if (!memory->LeaveRing()) {
    // A Buffer in use may come home before a control thread destroys the memory, and would leave it
    // in the ring of this thread.
    memory.reset();
    co_return;
  }
  const void* const order = memory->region().data();
  (void)co_await context.control().Finish(ControlKind::kMemory, order,
                                          [memory = std::move(memory)]() mutable {
                                            memory.reset();
                                            return absl::OkStatus();
                                          });
}

}  // namespace verbena::internal
