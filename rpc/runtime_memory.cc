// Runtime's memory of the program: registering it, and the end of that.

#include <memory>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/log.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/executor/blocking.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/payload_memory.h"

namespace verbena {

Task<absl::StatusOr<std::unique_ptr<RegisteredMemory>>> Runtime::RegisterMemory(
    void* memory, size_t bytes, MemoryOptions options) {
  internal::Shard* shard = CurrentShard();
  if (shard == nullptr) {
    co_return absl::FailedPreconditionError(
        "memory is registered in a task of the runtime; use Runtime::BlockOn(task) or "
        "Runtime::Spawn(task)");
  }
  if (memory == nullptr || bytes == 0) {
    co_return absl::InvalidArgumentError(
        fmt::format("{} bytes at {} are no memory to register", bytes, fmt::ptr(memory)));
  }
  VERBENA_CO_ASSIGN_OR_RETURN(internal::ShardDevice * device, shard->DeviceNamed(options.device));
  VERBENA_CO_ASSIGN_OR_RETURN(internal::Endpoint * endpoint, co_await device->AwaitEndpoint());
  // The device may fail meanwhile, and is open until the memory is deregistered.
  const std::shared_ptr<internal::OpenedDevice> opened = device->opened();
  const internal::DeviceContext& context = *opened->context;
  Scheduler* const home = options.for_files ? &shard->executor() : nullptr;
  const int access = UserMemoryAccess(context, endpoint->limits());
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> registered =
      co_await internal::RegisterMemory(context, memory, bytes, access, home);
  if (registered.ok()) (*registered)->HoldDevice(opened);
  co_return registered;
}

Task<void> Runtime::DeregisterMemory(std::unique_ptr<RegisteredMemory> memory) {
  const internal::Shard* shard = CurrentShard();
  VERBENA_CHECK(shard != nullptr) << "memory is deregistered in a task of the runtime";
  if (const internal::Endpoint* endpoint = shard->EndpointWith(memory->region().pd())) {
    [[maybe_unused]] const auto use = endpoint->Use();
    co_await internal::DeregisterMemory(endpoint->context(), std::move(memory));
    co_return;
  }
  // This executor does not use the device, or the device has failed since. If a Buffer is in use,
  // only the home's thread may destroy the memory.
  if (!memory->LeaveRing()) co_return;
  // `end` returns no Status, so RunBlocking() runs it even if the caller is cancelled. Otherwise
  // the frame of such a caller would deregister the memory on this executor.
  auto end = [memory = std::move(memory)]() mutable { memory.reset(); };
  try {
    co_await RunBlocking(std::move(end));
  } catch (const std::system_error& refused) {
    Log(LogLevel::kWarning,
        fmt::format("memory was deregistered on executor {}: the system starts no thread for it: "
                    "{}",
                    shard->index(), refused.what()));
  }
}

}  // namespace verbena
