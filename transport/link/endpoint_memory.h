// EndpointMemory: memory and queues that an endpoint registers with its device when it is made.
//
// Endpoint::Register() makes it, on any thread, and Endpoint::CreateWith() takes it. It has a
// header of its own, so code that only hands it on includes neither endpoint.h nor link.h.

#ifndef VERBENA_TRANSPORT_LINK_ENDPOINT_MEMORY_H_
#define VERBENA_TRANSPORT_LINK_ENDPOINT_MEMORY_H_

#include <memory>
#include <vector>

#include "verbena/transport/link/receives.h"
#include "verbena/transport/link/supplies.h"
#include "verbena/transport/memory/carved_arena.h"

namespace verbena::internal {

// Move-only; any thread.
struct EndpointMemory {
  std::unique_ptr<ReceiveRing> receives;
  SendMemory send;
  // Arenas for payloads. Empty when an endpoint is made: its pools grow by themselves.
  std::vector<std::unique_ptr<CarvedArena>> arenas = {};
  // Only on a device without shared receive queues.
  std::unique_ptr<LinkReceives> link_receives = nullptr;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_LINK_ENDPOINT_MEMORY_H_
