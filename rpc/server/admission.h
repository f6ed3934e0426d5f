// Admission: decides which calls one executor of a server starts, and when, as AdmissionOptions
// say.
//
// Counts the calls and bytes of methods and clients, keeps places for control calls, and has the
// queue, if there is one. Only servers with such bounds have an Admission; the others pay nothing.
// Part of a ServerShard, on its executor's thread.

#ifndef VERBENA_RPC_SERVER_ADMISSION_H_
#define VERBENA_RPC_SERVER_ADMISSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/admission.h"
#include "verbena/rpc/call_context.h"
#include "verbena/rpc/server/admission_queue.h"
#include "verbena/rpc/server/method_table.h"
#include "verbena/rpc/server/queued_call.h"
#include "verbena/transport/executor/executor.h"
#include "verbena/transport/executor/flush_queue.h"

namespace verbena::internal {

// Whether a server needs an Admission.
inline bool HasBounds(const AdmissionOptions& options) {
  return options.max_running != 0 || options.max_pinned_bytes_per_client != 0 ||
         options.max_pinned_bytes != 0 || !options.methods.empty();
}

class Admission final : private FlushHook {
 public:
  // Precondition: HasBounds(options), and each of its methods is in the table.
  Admission(Executor& executor, const MethodTable& methods, const AdmissionOptions& options);
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // The class that a call counts in: a control call without a control place is a normal one.
  CallClass ClassOf(Priority priority, const ClientQueue& client) const;
  // Which bound a call of these bytes would break now, if any.
  std::optional<RefusalReason> Check(int method, CallClass its_class, uint64_t pinned_bytes,
                                     const ClientQueue& client) const;
  // The call counts from now on, until Release(). Precondition: Check() has just found nothing.
  void Count(QueuedCall& call, int method, CallClass its_class, uint64_t pinned_bytes,
             ClientQueue& client);
  // The call is over. True if it had a control place.
  bool Release(QueuedCall& call, int method);

  // Calls wait for their turn.
  bool queues() const { return queue_ != nullptr; }
  // These need queues().
  void Enqueue(QueuedCall& call);
  void Leave(QueuedCall& call) { queue_->Remove(call); }
  // The call's handler has ended, or counts no more. Also without a queue.
  void EndRun(QueuedCall& call);

  // Refuses all that wait.
  void RefuseAll(RefusalReason reason);
  // On the executor, before this is destroyed. Precondition: no call waits.
  void Stop();

  uint32_t control_calls() const { return control_; }
  size_t waiting() const { return queue_ == nullptr ? 0 : queue_->waiting(); }

 private:
  struct MethodCount {
    MethodLimits limits;
    uint32_t calls = 0;
    uint64_t pinned_bytes = 0;
  };

  void Flush() override;  // a turn of the queue
  void Wake();

  Executor& executor_;
  const AdmissionOptions options_;
  std::vector<MethodCount> methods_;  // by index; empty if none has bounds
  std::unique_ptr<AdmissionQueue> queue_;
  uint32_t control_ = 0;
  uint64_t pinned_bytes_ = 0;
  uint64_t last_turn_ = 0;
};

// NOT_FOUND names a method of `options` that is not in the table; INVALID_ARGUMENT a field that is
// out of its range.
absl::Status CheckAdmission(const AdmissionOptions& options, const MethodTable& methods);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_ADMISSION_H_
