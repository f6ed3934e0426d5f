// A payload pool that grows while links serve delays only those that need the memory, and registers
// none on the executor's thread.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/transport/device/held_device.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/executor/spawn.h"
#include "verbena/transport/link/device_context.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/payload_memory.h"

namespace verbena::internal {
namespace pool_growth_test {

using Verb = HeldDevice::Verb;

constexpr size_t kMiB = size_t{1} << 20;

class PoolGrowthTest : public LinksFixture {
 protected:
  void SetUp() override {
    Start({}, {});
    link_ = Connect(client_listener_, server_listener_);
    ASSERT_NE(link_, nullptr);
  }
  std::unique_ptr<Device> Wrap(SoftDevice& device) override {
    auto held = std::make_unique<HeldDevice>(device);
    held_ = held.get();
    return held;
  }
  HeldDevice& held() { return *held_; }
  BufferPool& pool() { return client().memory().send(); }

  static Task<void> Allocate(BufferPool& pool, size_t bytes,
                             std::optional<absl::StatusOr<Buffer>>& result) {
    result = co_await pool.Allocate(bytes);
  }

  Receiver client_listener_, server_listener_;
  Link* link_ = nullptr;

 private:
  HeldDevice* held_ = nullptr;
};

TEST_F(PoolGrowthTest, NoArenaIsRegisteredOnTheExecutorsThread) {
  held().WatchThisThread();
  const int before = held().calls(Verb::kRegister);
  bool ended = false;
  auto use = [&]() -> Task<void> {
    std::vector<Buffer> buffers;
    for (int i = 0; i < 12; ++i) {
      absl::StatusOr<Buffer> buffer = co_await pool().Allocate(8 * kMiB);
      EXPECT_TRUE(buffer.ok()) << buffer.status();
      if (buffer.ok()) buffers.push_back(*std::move(buffer));
    }
    ended = true;
  };
  TaskScope scope(executor());
  scope.Spawn(use);
  PollUntil([&] { return ended; });
  EXPECT_GT(held().calls(Verb::kRegister), before + 1);
  EXPECT_EQ(held().calls_of_this_thread(), 0);
}

TEST_F(PoolGrowthTest, OthersServeWhileAPoolGrows) {
  held().Hold(Verb::kRegister);
  TaskScope scope(executor());
  std::optional<absl::StatusOr<Buffer>> result;
  scope.Spawn(Allocate(pool(), 4096, result));
  PollUntil([&] { return held().waiting(Verb::kRegister) > 0; });
  Flood flood(1000, 32);
  flood.Run(*link_);
  PollUntil([&] { return server_listener_.received() == 1000; });
  EXPECT_FALSE(result.has_value());
  held().Release(Verb::kRegister);
  PollUntil([&] { return result.has_value(); });
  EXPECT_TRUE(result->ok()) << result->status();
}

// An application's registration of a whole cache may take many seconds.
TEST_F(PoolGrowthTest, AnApplicationsRegistrationHoldsUpNoGrowth) {
  std::vector<char> memory(kMiB);
  held().Hold(Verb::kRegister);
  TaskScope scope(executor());
  scope.Spawn([&]() -> Task<void> {
    absl::StatusOr<std::unique_ptr<RegisteredMemory>> registered =
        co_await RegisterMemory(device_context(), memory.data(), memory.size(), 0);
    EXPECT_TRUE(registered.ok()) << registered.status();
    co_await DeregisterMemory(device_context(), *std::move(registered));
  });
  PollUntil([&] { return held().waiting(Verb::kRegister) == 1; });
  std::optional<absl::StatusOr<Buffer>> result;
  scope.Spawn(Allocate(pool(), 4096, result));
  PollUntil([&] { return held().waiting(Verb::kRegister) == 2; });
  held().Release(Verb::kRegister);
  PollUntil([&] { return result.has_value(); });
  PollUntil([&] { return scope.size() == 0; });
}

TEST_F(PoolGrowthTest, AnEndpointGoesWhileItsPoolGrows) {
  const auto registered = [this] {
    return held().calls(Verb::kRegister) - held().calls(Verb::kDeregister);
  };
  const int before = registered();
  std::unique_ptr<Endpoint> endpoint =
      Endpoint::Create(executor(), device_context(), LinkLimits{}).value();
  held().Hold(Verb::kRegister);
  {
    TaskScope scope(executor());
    std::optional<absl::StatusOr<Buffer>> result;
    scope.Spawn(Allocate(endpoint->memory().send(), 4096, result));
    PollUntil([&] { return held().waiting(Verb::kRegister) > 0; });
    scope.RequestCancel();
    PollUntil([&] { return scope.size() == 0; });
    EXPECT_EQ(result->status().code(), absl::StatusCode::kCancelled);
  }
  RunToEnd(endpoint->Shutdown());
  endpoint.reset();
  held().Release(Verb::kRegister);
  PollUntil([&] { return registered() == before; });
}

}  // namespace pool_growth_test
}  // namespace verbena::internal
