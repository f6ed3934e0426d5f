// LinkLimits: the bounds of a runtime's links.
//
// LeaseLimits, BulkLimits and MemoryBudgets are parts of it. docs/tuning.md explains each bound.
//
//   LinkLimits limits = {.max_links = 4096};
//   auto runtime = Runtime::Start({.limits = limits});

#ifndef VERBENA_RPC_LIMITS_H_
#define VERBENA_RPC_LIMITS_H_

#include "verbena/transport/link/limits.h"            // IWYU pragma: export
#include "verbena/transport/memory/memory_budgets.h"  // IWYU pragma: export

#endif  // VERBENA_RPC_LIMITS_H_
