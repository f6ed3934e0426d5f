// FaultInjector: an interceptor that makes calls of a channel slow, loses them, or fails them.
//
//   auto faults = std::make_shared<FaultInjector>();
//   InProcess<BlockService> blocks({.channel = {.interceptors = {faults}}});
//   faults->Add({.method = "Write", .after = 2, .times = 1,
//                .fail = absl::UnavailableError("the link was lost"),
//                .outcome = Outcome::kMaybeExecuted});
//
// So the third Write fails, after the server has run it. To the caller, faults look as real ones
// do: a call that is lost ends at its deadline, or when it is cancelled. A stream is one call: a
// fault hits a stream's beginning or end, never a message between them. Any thread; a fault holds
// for calls that begin after Add().

#ifndef VERBENA_RPC_TESTING_FAULT_INJECTOR_H_
#define VERBENA_RPC_TESTING_FAULT_INJECTOR_H_

#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "verbena/rpc/interceptor.h"
#include "verbena/rpc/status.h"
#include "verbena/rpc/task.h"
#include "verbena/transport/base/export.h"

namespace verbena::testing {

// A fault of some calls. If it has a delay and something else, the delay comes first.
struct Fault {
  static constexpr uint64_t kAlways = std::numeric_limits<uint64_t>::max();

  // The calls: of this method ("Write", or "package.Service/Write"), or all.
  std::string method = "";
  // The first `after` calls pass. Then the fault hits `times` calls.
  uint64_t after = 0;
  uint64_t times = kAlways;

  // The call begins this much later, by the clock of its executor. Its deadline does not move.
  Duration delay = {};
  // The request, or the reply, is lost. The outcome is kMaybeExecuted, as for a call that nobody
  // answers.
  bool drop_request = false;
  bool drop_reply = false;
  // Not OK: what the caller hears.
  absl::Status fail = {};
  // The outcome that the caller hears. With kNotExecuted the request is not sent. With the others
  // the server runs the call first; a call that it does not run ends as it would without the fault.
  Outcome outcome = Outcome::kNotExecuted;
};

class VERBENA_EXPORT FaultInjector final : public ClientInterceptor {
 public:
  // If several faults of a call are due, the one that was added first happens.
  void Add(Fault fault);
  // Forgets all faults. A call that waits because of one goes on waiting.
  void Clear();
  // How many calls had a fault.
  uint64_t injected() const;

  Task<absl::Status> Intercept(ClientCallView& call, ClientNext next) override;

 private:
  struct Counted {
    Fault fault;
    uint64_t seen = 0;
  };

  std::optional<Fault> FaultOf(const char* full_name);

  mutable std::mutex mutex_;
  std::vector<Counted> faults_;
  uint64_t injected_ = 0;
};

}  // namespace verbena::testing

#endif  // VERBENA_RPC_TESTING_FAULT_INJECTOR_H_
