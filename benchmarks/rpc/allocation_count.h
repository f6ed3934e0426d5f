// AllocationCount: how often this process has called malloc, calloc, realloc or aligned_alloc.
//
// Linking this file's target replaces these functions by versions that count. operator new calls
// them. Stays 0 under a sanitizer, which needs its own malloc. Any thread.

#ifndef VERBENA_BENCHMARKS_RPC_ALLOCATION_COUNT_H_
#define VERBENA_BENCHMARKS_RPC_ALLOCATION_COUNT_H_

#include <cstdint>

namespace verbena::benchmarks {

uint64_t AllocationCount();

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_RPC_ALLOCATION_COUNT_H_
