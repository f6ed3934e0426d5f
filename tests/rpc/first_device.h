// The first device of a runtime, for tests that look at it, or that use up the memory there.
//
// Call both functions on the runtime's first executor, whose endpoint they mean.

#ifndef VERBENA_TESTS_RPC_FIRST_DEVICE_H_
#define VERBENA_TESTS_RPC_FIRST_DEVICE_H_

#include "verbena/rpc/runtime.h"
#include "verbena/transport/device/device.h"
#include "verbena/transport/link/payload_memory.h"

namespace verbena::internal {

// Precondition: the device is in service.
const Device& FirstDeviceOf(Runtime& runtime);

// The payload memory on that device; nullptr while the device is not in service.
const PayloadMemory* PayloadMemoryOf(Runtime& runtime);

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_FIRST_DEVICE_H_
