// Executors: the loop of each core, for programs that drive or make executors themselves.
//
// A Runtime makes its executors and their threads. A program with an event loop of its own starts
// the runtime with `threads = false`. The program then calls Poll() and Arm() itself, and sleeps on
// fd() (examples/host_loop). ExecutorThread and BlockOn serve programs that use coroutines and
// files without a Runtime.
//
//   while (executor.Poll()) {
//   }
//   if (executor.Arm()) SleepOn(executor.fd());

#ifndef VERBENA_RPC_EXECUTOR_H_
#define VERBENA_RPC_EXECUTOR_H_

#include "verbena/transport/executor/blocking.h"  // IWYU pragma: export
#include "verbena/transport/executor/executor.h"  // IWYU pragma: export
#include "verbena/transport/executor/options.h"   // IWYU pragma: export
#include "verbena/transport/executor/spawn.h"     // IWYU pragma: export

#endif  // VERBENA_RPC_EXECUTOR_H_
