// Priority and RequestId, which a call carries beside its messages, its metadata and its trace.
// Inherit: what a call takes over from the Task that makes it.
//
// Values; any thread.
//
//   co_await stub.Heartbeat(request, {.priority = Priority::kControl});

#ifndef VERBENA_RPC_CALL_CONTEXT_H_
#define VERBENA_RPC_CALL_CONTEXT_H_

#include <array>
#include <cstdint>

namespace verbena {

// How urgent a call is. A server reads it as ServerContext::priority().
enum class Priority : uint8_t {
  kNormal = 0,
  kControl = 1,     // small and urgent, such as heartbeats
  kBackground = 2,  // may wait: scrubs, rebuilds
};

// A name of a call, the same in each attempt: the client, and a number that this client gives to no
// other call.
struct RequestId {
  std::array<uint8_t, 16> client{};
  uint64_t number = 0;

  bool operator==(const RequestId&) const = default;
};

// The context that a call takes over from the Task that makes it.
enum class Inherit : uint8_t {
  // The Task's deadline if that is earlier than the call's own, its cancellation and its trace.
  kAll = 0,
  // Nothing: for work that must be done even if the Task is cancelled, such as giving up a lock.
  // Neither a cancellation of the Task nor WithDeadline() ends such a call; its own deadline does.
  // Destroying the Task still abandons it: Spawn() what must outlive the Task. For a stream this
  // declines the deadline and the trace; a cancelled Task still ends its own awaits of it.
  kNothing = 1,
};

}  // namespace verbena

#endif  // VERBENA_RPC_CALL_CONTEXT_H_
