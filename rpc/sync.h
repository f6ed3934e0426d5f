// Mutex, Semaphore, Event and Queue: how coroutines of one executor wait for each other.
//
// No wait blocks a thread. Each object belongs to one executor and must outlive its waiters.
//
//   Semaphore in_flight(16);
//   VERBENA_CO_RETURN_IF_ERROR(co_await in_flight.Acquire());
//   const SemaphoreHold hold(in_flight);  // releases the permit

#ifndef VERBENA_RPC_SYNC_H_
#define VERBENA_RPC_SYNC_H_

#include "verbena/transport/coro/sync.h"  // IWYU pragma: export

#endif  // VERBENA_RPC_SYNC_H_
