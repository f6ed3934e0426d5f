// ScriptedBootstrap: a bootstrap of a LocalNetwork, whose Connect() first does what the test says:
// it waits, is silent, refuses, or throws.
//
//   ScriptedBootstrap bootstrap(network, [](const std::string& target) -> Task<absl::Status> {
//     if (target == "silent:1") co_return co_await SleepUntil(kNever);
//     co_return absl::OkStatus();
//   });

#ifndef VERBENA_TESTS_TRANSPORT_CONNECT_SCRIPTED_BOOTSTRAP_H_
#define VERBENA_TESTS_TRANSPORT_CONNECT_SCRIPTED_BOOTSTRAP_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/support/any_handler.h"
#include "verbena/transport/connect/bootstrap.h"
#include "verbena/transport/connect/local_bootstrap.h"
#include "verbena/transport/coro/task.h"

namespace verbena {

class ScriptedBootstrap final : public Bootstrap {
 public:
  // Told the target, on the executor that connects. A failure is that of Connect().
  using Script = AnyHandler<const std::string&>;

  ScriptedBootstrap(LocalNetwork& network, Script script);

  Task<absl::StatusOr<std::unique_ptr<MessageStream>>> Connect(std::string target) override;
  absl::StatusOr<std::unique_ptr<MessageListener>> Listen(const std::string& address) override;

 private:
  LocalBootstrap bootstrap_;
  const Script script_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_TRANSPORT_CONNECT_SCRIPTED_BOOTSTRAP_H_
