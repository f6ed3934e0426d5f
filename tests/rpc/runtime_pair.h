// RuntimePair: a fixture with a server's runtime and a client's runtime in one process, and with
// the calls by which a test waits.

#ifndef VERBENA_TESTS_RPC_RUNTIME_PAIR_H_
#define VERBENA_TESTS_RPC_RUNTIME_PAIR_H_

#include <chrono>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/server.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena {

class RuntimePair : public ::testing::Test {
 protected:
  static std::unique_ptr<Runtime> StartRuntime(RuntimeOptions options = {},
                                               internal::TestDevice device = {}) {
    absl::StatusOr<std::unique_ptr<Runtime>> runtime =
        internal::RuntimeCore::Start(std::move(options), std::move(device));
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    return runtime.ok() ? *std::move(runtime) : nullptr;
  }

  void ServeWith(Service& service, ServerOptions options = {}) {
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start(*server_runtime_, {&service}, std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

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

  static Task<absl::Status> Pause() { co_return co_await Sleep(std::chrono::milliseconds(1)); }

  // Waits until the channel has a link. It makes none for a while after two in a row that were lost
  // before they were of use.
  Task<absl::Status> AwaitLink() {
    while (!(co_await channel_->Connect()).ok()) {
      VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
    }
    co_return absl::OkStatus();
  }

  // Ends all of these, for a fixture with members that they use until then.
  void StopAll() {
    channel_.reset();
    client_runtime_.reset();
    server_.reset();
    server_runtime_.reset();
  }

  std::unique_ptr<Runtime> server_runtime_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Runtime> client_runtime_;
  std::unique_ptr<Channel> channel_;
};

}  // namespace verbena

#endif  // VERBENA_TESTS_RPC_RUNTIME_PAIR_H_
