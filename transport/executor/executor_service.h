// ExecutorService: an object of a higher layer that an executor has at most once, and that ends
// with the executor.
//
// Owned by the executor and used on its thread.

#ifndef VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_SERVICE_H_
#define VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_SERVICE_H_

namespace verbena::internal {

class ExecutorService {
 public:
  virtual ~ExecutorService() = default;
  // The executor is being destroyed, on this thread; its tasks are gone. Blocks until nothing is
  // under way. The inbox is emptied once more before the service itself is destroyed.
  virtual void Stop() = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_EXECUTOR_SERVICE_H_
