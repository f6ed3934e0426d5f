// The methods of verbena.reflection.v1 and verbena.health.v1, as both sides know them.
//
// Here, and not in generated stubs, so that Verbena builds without its own generator of code.
// Constants; any thread.

#ifndef VERBENA_RPC_REFLECTION_METHODS_H_
#define VERBENA_RPC_REFLECTION_METHODS_H_

#include "verbena/rpc/call.h"

namespace verbena::internal {

inline constexpr const char* kReflectionService = "verbena.reflection.v1.Reflection";
inline constexpr const char* kHealthService = "verbena.health.v1.Health";

inline constinit const MethodDescriptor kListServices("verbena.reflection.v1.Reflection/List",
                                                      Idempotency::kNoSideEffects);
inline constinit const MethodDescriptor kDescribe("verbena.reflection.v1.Reflection/Describe",
                                                  Idempotency::kNoSideEffects);
inline constinit const MethodDescriptor kCheckHealth("verbena.health.v1.Health/Check",
                                                     Idempotency::kNoSideEffects);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_REFLECTION_METHODS_H_
