// PollUntil: drives executors that a host owns, on this thread, until something is true.
//
// All are polled in turn, because the one that the caller waits for may need another. The thread
// sleeps while none of them has work, unless one of them is in busy mode or has a clock of its own.
// None of them may be polled or run by another thread meanwhile. Not inside an executor's loop.

#ifndef VERBENA_TRANSPORT_EXECUTOR_POLL_UNTIL_H_
#define VERBENA_TRANSPORT_EXECUTOR_POLL_UNTIL_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "verbena/transport/executor/executor.h"

namespace verbena {

// `done` becomes true by something that one of `executors` does, and is asked after each round.
void PollUntil(const std::vector<Executor*>& executors, absl::FunctionRef<bool()> done);

}  // namespace verbena

#endif  // VERBENA_TRANSPORT_EXECUTOR_POLL_UNTIL_H_
