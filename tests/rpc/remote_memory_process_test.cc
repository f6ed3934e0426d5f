// Operations on memory that another process lends over the shared-memory wire end when that process
// is frozen or killed.

#include <csignal>
#include <memory>
#include <utility>

#include "tests/rpc/memory_fixture.h"
#include "tests/rpc/server_process.h"

namespace verbena::internal {
namespace remote_memory_process_test {

using std::chrono::milliseconds;

class RemoteMemoryProcessTest : public MemoryFixture {
 protected:
  // Forked before there are threads.
  RemoteMemoryProcessTest()
      : process_(std::make_unique<ServerProcess<MemoryService>>("127.0.0.1:0")) {}

  void Start(Duration ping_interval = LinkLimits().ping_interval) {
    LinkLimits limits;
    limits.ping_interval = ping_interval;
    StartClientOf(process_->address(), {.limits = limits});
    stub_ = std::make_unique<testing::Memories::Stub>(*channel_);
  }

  Task<absl::StatusOr<RemoteMemory>> Borrowed(size_t bytes) {
    testing::BorrowRequest request;
    request.set_bytes(bytes);
    request.set_access(static_cast<uint32_t>(kAnyAccess));
    VERBENA_CO_ASSIGN_OR_RETURN(testing::BorrowReply reply, co_await stub_->Borrow(request));
    co_return channel_->Remote(reply.memory());
  }

  std::unique_ptr<ServerProcess<MemoryService>> process_;
};

// Operations on memory wait for the SENDs before them, which a frozen process does not take. No
// call is outstanding by then.
TEST_F(RemoteMemoryProcessTest, OperationsOnAFrozenProcessEndWithTheLink) {
  Start(/*ping_interval=*/milliseconds(200));
  auto run = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(RemoteMemory memory, co_await Borrowed(4096));
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Zeroed(4096));
    VERBENA_CO_RETURN_IF_ERROR(co_await memory.Read(0, buffer.view()));
    EXPECT_TRUE(IsPattern(buffer.view()));
    process_->Signal(SIGSTOP);
    // A signal takes its time: until it arrives, the process still answers calls.
    absl::Status status;
    while (status.ok()) {
      testing::UseReply reply;
      absl::Status given_up =
          co_await stub_->Use(testing::UseRequest(), reply, {.deadline = milliseconds(20)});
      EXPECT_FALSE(given_up.ok());
      status = co_await memory.Read(0, buffer.view());
    }
    co_return status;
  };
  const absl::Status status = Run(run());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  Eventually([this] { return HeldBy(*client_runtime_).bytes == 0; }, "the memory is home");
}

TEST_F(RemoteMemoryProcessTest, OperationsOnAProcessThatIsKilledEnd) {
  Start();
  auto run = [this]() -> Task<absl::Status> {
    VERBENA_CO_ASSIGN_OR_RETURN(RemoteMemory memory, co_await Borrowed(1 << 20));
    TaskScope scope(co_await CurrentContext());
    int done = 0;
    absl::Status last;
    for (int i = 0; i < 20; ++i) {
      scope.Spawn([&, i]() -> Task<void> {
        absl::StatusOr<Buffer> buffer = co_await Zeroed(500'000);
        EXPECT_TRUE(buffer.ok());
        absl::Status status;
        while (status.ok() && buffer.ok()) {
          if (i % 3 == 0) status = co_await memory.Read(1000, buffer->view());
          if (i % 3 == 1) status = co_await memory.Write(500'000, buffer->view());
          if (i % 3 == 2) status = (co_await memory.FetchAdd(8, 1)).status();
          if (++done == 100) process_->Kill();
        }
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      });
    }
    co_await scope.Join();
    EXPECT_GE(done, 100);
    co_return absl::OkStatus();
  };
  EXPECT_EQ(Run(run()), absl::OkStatus());
  Eventually([this] { return HeldBy(*client_runtime_).bytes == 0; }, "the memory is home");
}

}  // namespace remote_memory_process_test
}  // namespace verbena::internal
