// RegisterMemory: a user's memory, registered without holding up an executor.
//
// Programs use Runtime::RegisterMemory(), which calls this. Registering a gibibyte takes 0.3 s and
// more. RegisteredMemory::Register() blocks its thread for that time: use it for set-up only. These
// Tasks run on any executor, and do the work on the device's control threads.
//
//   VERBENA_CO_ASSIGN_OR_RETURN(std::unique_ptr<RegisteredMemory> cache,
//                               co_await RegisterMemory(context, memory, bytes, access));
//   co_await DeregisterMemory(context, std::move(cache));

#ifndef VERBENA_TRANSPORT_LINK_REGISTER_MEMORY_H_
#define VERBENA_TRANSPORT_LINK_REGISTER_MEMORY_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "verbena/transport/coro/task.h"
#include "verbena/transport/memory/registered_memory.h"

namespace verbena {
class Scheduler;
}  // namespace verbena

namespace verbena::internal {

class DeviceContext;

// Registers `memory` as RegisteredMemory::Register() does. `home`: the executor whose O_DIRECT
// files use it as a fixed buffer, or nullptr. `memory` must stay mapped until this Task has ended.
// If the Task is cancelled or destroyed first, keep the memory mapped until the context is
// destroyed: the registration ends by then. The context must outlive the result.
Task<absl::StatusOr<std::unique_ptr<RegisteredMemory>>> RegisterMemory(const DeviceContext& context,
                                                                       void* memory, size_t bytes,
                                                                       int access,
                                                                       Scheduler* home = nullptr);

// Deregisters `memory`, even if the Task is given up after it began. Precondition: no Buffer of it
// is in use. If it has a home, call this on that executor.
Task<void> DeregisterMemory(const DeviceContext& context, std::unique_ptr<RegisteredMemory> memory);

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_REGISTER_MEMORY_H_
