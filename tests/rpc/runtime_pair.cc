#include "tests/rpc/runtime_pair.h"

#include <chrono>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/sleep.h"

namespace verbena {

std::unique_ptr<Runtime> RuntimePair::StartRuntime(RuntimeOptions options) {
  return StartRuntime(std::move(options), {});
}

std::unique_ptr<Runtime> RuntimePair::StartRuntime(RuntimeOptions options,
                                                   internal::TestDevice device) {
  absl::StatusOr<std::unique_ptr<Runtime>> runtime =
      internal::RuntimeCore::Start(std::move(options), std::move(device));
  EXPECT_TRUE(runtime.ok()) << runtime.status();
  return runtime.ok() ? *std::move(runtime) : nullptr;
}

void RuntimePair::ServeWith(Service& service, ServerOptions options) {
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(*server_runtime_, {&service}, std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
}

Task<absl::Status> RuntimePair::Pause() { co_return co_await Sleep(std::chrono::milliseconds(1)); }

Task<absl::Status> RuntimePair::AwaitLink() {
  while (!(co_await channel_->Connect()).ok()) {
    VERBENA_CO_RETURN_IF_ERROR(co_await Pause());
  }
  co_return absl::OkStatus();
}

void RuntimePair::StopAll() {
  channel_.reset();
  client_runtime_.reset();
  server_.reset();
  server_runtime_.reset();
}

}  // namespace verbena
