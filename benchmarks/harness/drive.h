// Running tasks on a runtime without threads. The calling thread runs the executor, so one thread
// does all that is measured, and is free for other work between slices.

#ifndef VERBENA_BENCHMARKS_HARNESS_DRIVE_H_
#define VERBENA_BENCHMARKS_HARNESS_DRIVE_H_

#include <cstdint>
#include <string>

#include "verbena/rpc/runtime.h"
#include "verbena/transport/coro/task.h"

namespace verbena::benchmarks {

// Runs executor 0, as its mode says, until `task` has ended.
void Drive(Runtime& runtime, Task<void> task);

// The wire that calls run over: "shm" for the soft device's shared memory, "tcp" for the soft
// device over TCP, otherwise the RDMA device's name.
std::string WireName(const Runtime& runtime);

// Whether a runtime with that option has the soft device over TCP alone.
bool RunsOverTcp(const std::string& device);

uint64_t NowNs();

}  // namespace verbena::benchmarks

#endif  // VERBENA_BENCHMARKS_HARNESS_DRIVE_H_
