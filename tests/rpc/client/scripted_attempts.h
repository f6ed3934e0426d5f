// ScriptedAttempts: attempts of a call that take as long, and end, as a test says, without servers.
// Run them on a ManualScheduler, on whose clock they take that long.

#ifndef VERBENA_TESTS_RPC_CLIENT_SCRIPTED_ATTEMPTS_H_
#define VERBENA_TESTS_RPC_CLIENT_SCRIPTED_ATTEMPTS_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/rpc/testing.pb.h"
#include "tests/support/manual_scheduler.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/client/attempts.h"
#include "verbena/rpc/client/connection.h"
#include "verbena/rpc/client/spec.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/check.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/context.h"
#include "verbena/transport/coro/scheduler.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena::internal {

inline absl::Status Failure(absl::StatusCode code, Outcome outcome) {
  return WithOutcome(absl::Status(code, "as the test says"), outcome);
}
inline absl::Status Unavailable(Outcome outcome) {
  return Failure(absl::StatusCode::kUnavailable, outcome);
}

struct ScriptedAttempt {
  Duration takes = {};  // once it has a server
  absl::Status status = {};
  bool payload_comes_back = true;   // otherwise its server may still read it
  Duration seeks = {};              // a server, before that
  bool payload_is_dropped = false;  // as by an interceptor that destroys the attempt
};

class ScriptedAttempts final : public AttemptMaker {
 public:
  // `script` says how the attempt with this number, from 0, goes.
  explicit ScriptedAttempts(std::function<ScriptedAttempt(int)> script)
      : script_(std::move(script)) {}
  explicit ScriptedAttempts(std::vector<ScriptedAttempt> script)
      : script_([script = std::move(script)](int index) { return script.at(index); }) {}

  Task<absl::Status> Attempt(CallSpec spec) override {
    const int index = begun++;
    const ScriptedAttempt attempt = script_(index);
    Payload payload = spec.buffers.TakePayload();
    had_payload.push_back(payload.present());
    const absl::Status slept = co_await WithDeadline(Take(attempt, *spec.tried), spec.deadline);
    if (!attempt.payload_is_dropped) {
      spec.buffers.GiveBack(std::move(payload), /*may_be_read=*/!attempt.payload_comes_back);
    }
    if (!slept.ok()) {
      ++cut_off;
      co_return WithOutcome(slept, Outcome::kMaybeExecuted);
    }
    if (attempt.status.ok()) static_cast<testing::EchoReply&>(spec.reply).set_number(index);
    co_return attempt.status;
  }

  int begun = 0;
  int cut_off = 0;  // by a deadline, or a cancellation
  std::vector<bool> had_payload;

 private:
  static Task<absl::Status> Take(ScriptedAttempt attempt, TriedServers& tried) {
    const Scheduler* scheduler = (co_await CurrentContext()).scheduler;
    VERBENA_CHECK(dynamic_cast<const ManualScheduler*>(scheduler) != nullptr)
        << "no test waits by the machine's clock";
    if (attempt.seeks > Duration::zero()) {
      VERBENA_CO_RETURN_IF_ERROR(co_await Sleep(attempt.seeks));
    }
    tried.NoteFound();
    co_return co_await Sleep(attempt.takes);
  }

  const std::function<ScriptedAttempt(int)> script_;
};

inline constexpr MethodDescriptor kReads{"test.Test/Reads", Idempotency::kNoSideEffects};
inline constexpr MethodDescriptor kSets{"test.Test/Sets", Idempotency::kIdempotent};
inline constexpr MethodDescriptor kAdds{"test.Test/Adds", Idempotency::kUnknown};

}  // namespace verbena::internal

#endif  // VERBENA_TESTS_RPC_CLIENT_SCRIPTED_ATTEMPTS_H_
