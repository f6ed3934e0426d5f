// CompletionListener: receives the completions of a CQ.

#ifndef VERBENA_TRANSPORT_EXECUTOR_COMPLETION_LISTENER_H_
#define VERBENA_TRANSPORT_EXECUTOR_COMPLETION_LISTENER_H_

struct ibv_wc;

namespace verbena::internal {

// Called on the executor's thread with 1 to 32 completions; may ready coroutines, post work
// requests and queue frames, and must not destroy the CQ. Owned by whoever added the CQ; outlives
// it.
class CompletionListener {
 public:
  virtual ~CompletionListener() = default;
  virtual void OnCompletions(const ibv_wc* completions, int count) = 0;
};

}  // namespace verbena::internal

#endif  // VERBENA_TRANSPORT_EXECUTOR_COMPLETION_LISTENER_H_
