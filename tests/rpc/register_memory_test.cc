// A program's own memory can be registered while its executor serves, moved as payloads, and given
// back. No verb for it runs on the executor.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "tests/rpc/payload_service.h"
#include "tests/transport/device/held_device.h"
#include "verbena/rpc/shard/runtime.h"
#include "verbena/transport/coro/scope.h"
#include "verbena/transport/memory/registered_memory.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace register_memory_test {

using absl::StatusCode;
using ::testing::HasSubstr;
using Registered = std::unique_ptr<RegisteredMemory>;
using Verb = HeldDevice::Verb;

class RegisterMemoryTest : public PayloadFixture {
 protected:
  static constexpr size_t kBytes = 1 << 20;

  void SetUp() override {
    StartServer();
    StartClient({}, {.use = &held_});
  }
  void TearDown() override { StopBoth(); }

  Task<absl::Status> Put(Buffer payload) {
    testing::PutReply reply;
    VERBENA_CO_RETURN_IF_ERROR(
        co_await stub_->Put({}, reply, {.request_payload = std::move(payload)}));
    co_return reply.right() ? absl::OkStatus() : absl::DataLossError("another payload arrived");
  }
  absl::Status RegisterFails(Runtime& on, void* memory, size_t bytes, MemoryOptions options = {}) {
    return on.BlockOn(client_runtime_->RegisterMemory(memory, bytes, std::move(options))).status();
  }

  std::unique_ptr<SoftDevice> device_ = *SoftDevice::Create({});
  HeldDevice held_{*device_};
  std::vector<char> memory_ = std::vector<char>(kBytes);
};

TEST_F(RegisterMemoryTest, CallsMoveTheProgramsOwnMemory) {
  auto use = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(std::string device, co_await channel_->DeviceName());
    EXPECT_EQ(device, client_runtime_->device_names().at(0));
    VERBENA_CO_ASSIGN_OR_RETURN(Registered own, co_await client_runtime_->RegisterMemory(
                                                    memory_.data(), kBytes, {.device = device}));
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer request, own->Wrap(4096, 100'000));
    FillPattern(request.view());
    VERBENA_CO_RETURN_IF_ERROR(co_await Put(std::move(request)));
    // A response payload lands in the registered memory, too.
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer into, own->Wrap(200'000, 50'000));
    testing::GetRequest wanted;
    wanted.set_bytes(50'000);
    WithPayload<testing::GetReply> reply;
    VERBENA_CO_RETURN_IF_ERROR(
        co_await stub_->Get(wanted, reply, {.response_payload_into = std::move(into)}));
    EXPECT_EQ(reply.payload.data(), memory_.data() + 200'000);
    EXPECT_TRUE(IsPattern(reply.payload.view()));
    // A loan of the registered memory works, too.
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer table, own->Wrap(0, 4096));
    VERBENA_CO_ASSIGN_OR_RETURN(Loan loan,
                                co_await channel_->Lend(table.view(), LeaseAccess::kRead));
    VERBENA_CO_RETURN_IF_ERROR(co_await std::move(loan).End());
    reply.payload.Reset();
    table.Reset();
    while (own->in_use() > 0) (void)co_await Pause();
    co_await client_runtime_->DeregisterMemory(std::move(own));
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(use()), absl::OkStatus());
}

TEST_F(RegisterMemoryTest, NoVerbRunsOnTheExecutor) {
  auto use = [this]() -> Task<absl::Status> {
    held_.WatchThisThread();
    const int registered = held_.calls(Verb::kRegister);
    const int deregistered = held_.calls(Verb::kDeregister);
    VERBENA_CO_ASSIGN_OR_RETURN(Registered own,
                                co_await client_runtime_->RegisterMemory(memory_.data(), kBytes));
    co_await client_runtime_->DeregisterMemory(std::move(own));
    EXPECT_EQ(held_.calls(Verb::kRegister), registered + 1);
    EXPECT_EQ(held_.calls(Verb::kDeregister), deregistered + 1);
    EXPECT_EQ(held_.calls_of_this_thread(), 0);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(use()), absl::OkStatus());
}

TEST_F(RegisterMemoryTest, CallsGoOnWhileMemoryIsRegistered) {
  std::atomic<bool> ended = false;
  auto own = [this, &ended]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Registered memory,
                                co_await client_runtime_->RegisterMemory(memory_.data(), kBytes));
    ended = true;
    co_await client_runtime_->DeregisterMemory(std::move(memory));
    co_return absl::OkStatus();
  };
  auto use = [&]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer first, co_await Filled(1000));
    VERBENA_CO_RETURN_IF_ERROR(co_await Put(std::move(first)));
    held_.Hold(Verb::kRegister);
    TaskScope scope(client_runtime_->executor(0));
    absl::Status owned;
    scope.Spawn([&]() -> Task<void> { owned = co_await own(); });
    while (held_.waiting(Verb::kRegister) == 0) (void)co_await Pause();
    for (int i = 0; i < 100; ++i) {
      VERBENA_CO_ASSIGN_OR_RETURN(Buffer payload, co_await Filled(1000));
      VERBENA_CO_RETURN_IF_ERROR(co_await Put(std::move(payload)));
    }
    EXPECT_FALSE(ended);
    held_.Release(Verb::kRegister);
    co_await scope.Join();
    co_return owned;
  };
  EXPECT_EQ(Run(use()), absl::OkStatus());
}

TEST_F(RegisterMemoryTest, MemoryOfADeviceThatIsNotInUseHereIsDeregisteredOffTheExecutor) {
  Registered own =
      Run(client_runtime_->RegisterMemory(memory_.data(), kBytes, {.for_files = false})).value();
  auto end = [this](Registered memory) -> Task<void> {
    held_.WatchThisThread();
    co_await server_runtime_->DeregisterMemory(std::move(memory));
    EXPECT_EQ(held_.calls_of_this_thread(), 0);
  };
  const int before = held_.calls(Verb::kDeregister);
  server_runtime_->BlockOn(end(std::move(own)));
  EXPECT_EQ(held_.calls(Verb::kDeregister), before + 1);
}

TEST_F(RegisterMemoryTest,
       MemoryOfAnotherDeviceIsDeregisteredOffTheExecutorThoughItsCallerIsCancelled) {
  Registered own =
      Run(client_runtime_->RegisterMemory(memory_.data(), memory_.size(), {.for_files = false}))
          .value();
  auto end = [&]() -> Task<void> {
    held_.WatchThisThread();
    TaskScope scope(server_runtime_->executor(0));
    scope.RequestCancel();
    scope.Spawn(server_runtime_->DeregisterMemory(std::move(own)));
    co_await scope.Join();
    EXPECT_EQ(held_.calls_of_this_thread(), 0);
  };
  const int before = held_.calls(Verb::kDeregister);
  server_runtime_->BlockOn(end());
  EXPECT_EQ(held_.calls(Verb::kDeregister), before + 1);
}

TEST_F(RegisterMemoryTest, MemoryThatCannotBeRegisteredIsRefusedWithTheReason) {
  EXPECT_EQ(RegisterFails(*client_runtime_, nullptr, 10).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(RegisterFails(*client_runtime_, memory_.data(), 0).code(),
            StatusCode::kInvalidArgument);
  const absl::Status unknown =
      RegisterFails(*client_runtime_, memory_.data(), kBytes, {.device = "mlx5_7"});
  EXPECT_EQ(unknown.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(unknown.ToString(),
              HasSubstr("there is no device \"mlx5_7\"; the runtime has " + device_->name()));
  EXPECT_EQ(RegisterFails(*server_runtime_, memory_.data(), kBytes).code(),
            StatusCode::kFailedPrecondition)
      << "on another runtime's executor";
}

}  // namespace register_memory_test
}  // namespace verbena::internal
