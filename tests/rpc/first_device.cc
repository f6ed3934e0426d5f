#include "tests/rpc/first_device.h"

#include "absl/status/statusor.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/rpc/shard/shard.h"
#include "verbena/transport/link/endpoint.h"

namespace verbena::internal {

const Device& FirstDeviceOf(Runtime& runtime) {
  return (*CoreOf(runtime).shard(0).EndpointOn(0))->device();
}

const PayloadMemory* PayloadMemoryOf(Runtime& runtime) {
  absl::StatusOr<Endpoint*> endpoint = CoreOf(runtime).shard(0).EndpointOn(0);
  return endpoint.ok() ? &(*endpoint)->memory() : nullptr;
}

}  // namespace verbena::internal
