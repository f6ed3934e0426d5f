// AllocationCount: how often this process has called malloc, calloc, realloc or aligned_alloc.
//
// Linking this file's target replaces them by ones that count (operator new calls malloc). Any
// thread.

#ifndef VERBENA_BENCHMARKS_RPC_ALLOCATION_COUNT_H_
#define VERBENA_BENCHMARKS_RPC_ALLOCATION_COUNT_H_

#include <cstdint>

namespace verbena::benchmarks {

uint64_t AllocationCount();

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_RPC_ALLOCATION_COUNT_H_
