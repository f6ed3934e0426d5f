// RuntimePair: a fixture with a server's runtime and a client's runtime in one process, and with
// the calls by which a test waits.

#ifndef VERBENA_TESTS_RPC_RUNTIME_PAIR_H_
#define VERBENA_TESTS_RPC_RUNTIME_PAIR_H_

#include <chrono>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/runtime.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/task.h"
#include "verbena/transport/base/clock.h"

namespace verbena {

namespace internal {
struct TestDevice;  // verbena/rpc/shard/runtime.h
}  // namespace internal

class RuntimePair : public ::testing::Test {
 protected:
  static std::unique_ptr<Runtime> StartRuntime(RuntimeOptions options = {});
  // The same on a device of the test's, in the place of those that `options` name.
  static std::unique_ptr<Runtime> StartRuntime(RuntimeOptions options, internal::TestDevice device);

  void ServeWith(Service& service, ServerOptions options = {});

  // Runs `task` on an executor of the client, and waits for its result.
  template <typename T>
  T Run(Task<T> task, int executor = 0) {
    return client_runtime_->BlockOn(std::move(task), executor);
  }

  // Waits on the client's executor until `condition` holds; fails the test after `patience`. For
  // what another process does, and counts that tell nobody of their changes: it looks again after a
  // pause. Otherwise wait for a Watched.
  template <typename Condition>
  void Eventually(Condition condition, const char* what,
                  Duration patience = std::chrono::seconds(20)) {
    const TimePoint limit = Clock::Real().Now() + patience;
    while (!condition()) {
      ASSERT_LT(Clock::Real().Now(), limit) << "never came true: " << what;
      (void)Run(Pause());
    }
  }

  static Task<absl::Status> Pause();

  // Waits until the channel has a link. It makes none for a while after two in a row that were lost
  // before they were of use.
  Task<absl::Status> AwaitLink();

  // Ends all of these, for a fixture with members that they use until then.
  void StopAll();

  std::unique_ptr<Runtime> server_runtime_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Runtime> client_runtime_;
  std::unique_ptr<Channel> channel_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_RUNTIME_PAIR_H_
