// KeptResult: how a deduplicated call ended, for requests that repeat it. DedupeWaiter: such a
// request while the call runs.

#ifndef VERBENA_RPC_SERVER_DEDUPE_RESULT_H_
#define VERBENA_RPC_SERVER_DEDUPE_RESULT_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "verbena/rpc/metadata.h"
#include "verbena/rpc/outcome.h"
#include "verbena/transport/coro/event.h"
#include "verbena/transport/executor/executor.h"

namespace verbena::internal {

// Unchanged once it is shared; any thread.
struct KeptResult {
  absl::Status status;
  Outcome outcome = Outcome::kExecuted;
  std::string reply;                   // serialized; empty after a failure
  std::optional<std::string> payload;  // of the response
  Metadata trailing;                   // that the handler gave
  bool is_final = true;                // false: a further request may run the call

  size_t bytes() const {
    size_t bytes = status.message().size() + reply.size() + trailing.bytes();
    if (payload.has_value()) bytes += payload->size();
    status.ForEachPayload([&bytes](absl::string_view url, const absl::Cord& value) {
      bytes += url.size() + value.size();
    });
    return bytes;
  }
};

// Shared by the request that waits, on its executor's thread, and by the table until the call has
// ended. Tell() may be called once, on any thread.
class DedupeWaiter final : public std::enable_shared_from_this<DedupeWaiter> {
 public:
  // `executor` outlives the running call.
  explicit DedupeWaiter(Executor& executor) : executor_(executor) {}

  Event& told() { return told_; }
  // Precondition: told().
  const KeptResult& result() const { return *result_; }

  void Tell(std::shared_ptr<const KeptResult> result) {
    executor_.PostFunction([self = shared_from_this(), result = std::move(result)]() mutable {
      self->result_ = std::move(result);
      self->told_.Set();
    });
  }

 private:
  Executor& executor_;
  Event told_;
  std::shared_ptr<const KeptResult> result_;
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_SERVER_DEDUPE_RESULT_H_
