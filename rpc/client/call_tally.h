// CallTally: how the calls of one connection have ended, counted as they end.
//
// There is one only if a channel judges its servers (EjectionOptions), and several channels may
// read it, so numbers only grow. Failures are those of the server or of the way to it: a link that
// was lost under calls, a deadline that passed unanswered, and an answer of UNAVAILABLE or INTERNAL
// that does not know whether the handler ran. What a handler answers is no failure. One call in
// kTimedOneIn is timed, since reading a clock costs more than the rest. Owned by a Connection; on
// its executor's thread.

#ifndef VERBENA_RPC_CLIENT_CALL_TALLY_H_
#define VERBENA_RPC_CLIENT_CALL_TALLY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "verbena/rpc/outcome.h"
#include "verbena/transport/base/clock.h"

namespace verbena::internal {

struct CallTally {
  static constexpr uint64_t kTimedOneIn = 16;

  uint64_t answered = 0;
  uint64_t failed = 0;
  uint64_t failed_before_answer = 0;  // the failures up to the last answer
  uint64_t timed = 0;                 // calls whose time is in `time`
  Duration time{};

  // A response has come, with the code and the outcome of its frame.
  void OnResponse(uint8_t code, uint8_t outcome) {
    if (code != 0 && IsFailure(code, outcome)) [[unlikely]] {
      ++failed;
      return;
    }
    ++answered;
    failed_before_answer = failed;
  }
  void OnFailure() { ++failed; }
  void OnTimed(Duration took) {
    ++timed;
    time += took;
  }

 private:
  static bool IsFailure(uint8_t code, uint8_t outcome) {
    const bool is_known = outcome == static_cast<uint8_t>(Outcome::kNotExecuted) ||
                          outcome == static_cast<uint8_t>(Outcome::kExecuted);
    const bool is_servers = code == static_cast<uint8_t>(absl::StatusCode::kUnavailable) ||
                            code == static_cast<uint8_t>(absl::StatusCode::kInternal);
    return is_servers && !is_known;
  }
};

}  // namespace verbena::internal

#endif  // VERBENA_RPC_CLIENT_CALL_TALLY_H_
