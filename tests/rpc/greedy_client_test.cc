// A client whose payloads take all of its share of the server's memory leaves room for others. A
// refusal says who holds the memory.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/first_device.h"
#include "tests/rpc/payload_service.h"
#include "tests/transport/base/captured_log.h"

namespace verbena::internal {
namespace greedy_client_test {

using std::chrono::seconds;

constexpr size_t kBudget = 1 << 20;
constexpr size_t kPart = kBudget / 4;

class GreedyClientTest : public PayloadFixture {
 protected:
  void Start(ServerOptions options) {
    // No wait for memory in use can be met.
    options.memory_wait = seconds(1);
    LinkLimits limits;
    limits.memory.receive_bytes = kBudget;
    limits.leases.granted_bytes_per_client = 0;
    server_runtime_ = StartRuntime({.limits = limits});
    ASSERT_EQ(server_runtime_->BlockOn(RegisterAll(*server_runtime_)), absl::OkStatus());
    ServeWith(service_, std::move(options));
    StartClient();
  }
  // Calls wait for memory in use alone: registering it may take longer than they may wait.
  static Task<absl::Status> RegisterAll(Runtime& runtime) {
    co_return (co_await PayloadMemoryOf(runtime)->receive().Allocate(kBudget)).status();
  }

  static Task<absl::Status> Put(Channel& channel, size_t bytes, Deadline deadline = {}) {
    testing::Payloads::Stub stub(channel);
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel.AllocateBuffer(bytes));
    FillPattern(buffer.view());
    testing::PutReply reply;
    co_return co_await stub.Put(testing::PutRequest(), reply,
                                {.deadline = deadline, .request_payload = std::move(buffer)});
  }
  // Keeps its payload until it is cancelled, which the end of the client's runtime does.
  Task<void> Hold() {
    absl::StatusOr<Buffer> buffer = co_await channel_->AllocateBuffer(kPart);
    if (!buffer.ok()) co_return;
    WithPayload<testing::PutReply> reply;
    (void)co_await stub_->Hold(testing::HoldRequest(), reply,
                               {.request_payload = *std::move(buffer)});
  }
  static bool Says(const std::string& text, const std::string& part) {
    return text.find(part) != text.npos;
  }
};

// As handlers of a cache do.
TEST_F(GreedyClientTest, MemoryThatHandlersKeepIsNamedWhenOthersWaitForIt) {
  service_.keep = true;
  Start({.max_bytes_per_client = 2 * kBudget});
  for (int i = 0; i < 4; ++i) ASSERT_EQ(Run(Put(*channel_, kPart)), absl::OkStatus());
  const ServerMemory memory = server_->stats().receive_memory;
  EXPECT_EQ(memory.budget, kBudget);
  EXPECT_EQ(memory.by_handlers, kBudget);
  EXPECT_EQ(memory.granted + memory.in_transfers + memory.waiting, 0u);

  CapturedLog log;
  absl::Status status = Run(Put(*channel_, kPart, seconds(10)));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  const std::string message(status.message());
  EXPECT_TRUE(Says(message, "receive memory")) << message;
  EXPECT_TRUE(Says(message, "1048576 by handlers")) << message;
  EXPECT_EQ(Run(Put(*channel_, kPart)).code(), absl::StatusCode::kResourceExhausted);
  int lines = 0;
  for (const std::string& line : log.Take()) lines += Says(line, "by handlers") ? 1 : 0;
  EXPECT_EQ(lines, 1) << "the log is not flooded";
  EXPECT_GE(server_->stats().receive_memory.waits, 2u);

  service_.kept.clear();
  EXPECT_EQ(Run(Put(*channel_, kPart)), absl::OkStatus());
  service_.kept.clear();
}

// As a server does that answers before it flushes.
TEST_F(GreedyClientTest, PayloadsThatHandlersKeepCountInTheirClientsShare) {
  service_.keep = true;
  Start({.max_bytes_per_client = 2 * kPart});
  for (int i = 0; i < 2; ++i) ASSERT_EQ(Run(Put(*channel_, kPart)), absl::OkStatus());
  const absl::Status status = Run(Put(*channel_, kPart));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_TRUE(Says(std::string(status.message()), "max_bytes_per_client")) << status;

  std::unique_ptr<Runtime> other_runtime = StartRuntime();
  Channel other(*other_runtime, server_->address());
  EXPECT_EQ(other_runtime->BlockOn(Put(other, kPart)), absl::OkStatus());

  service_.kept.clear();
  EXPECT_EQ(Run(Put(*channel_, kPart)), absl::OkStatus());
  service_.kept.clear();
}

TEST_F(GreedyClientTest, OneClientsPayloadsLeaveRoomForOthers) {
  Start({.max_bytes_per_client = kPart});
  client_runtime_->Spawn(Hold());
  Eventually([this] { return service_.holding == 1; },
             "a handler has all that its client may have");
  absl::Status status = Run(Put(*channel_, kPart));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(OutcomeOf(status), Outcome::kNotExecuted);
  EXPECT_TRUE(Says(std::string(status.message()), "max_bytes_per_client")) << status;

  std::unique_ptr<Runtime> other_runtime = StartRuntime();
  Channel other(*other_runtime, server_->address());
  EXPECT_EQ(other_runtime->BlockOn(Put(other, kPart)), absl::OkStatus());
  // More than its share is served, alone.
  EXPECT_EQ(other_runtime->BlockOn(Put(other, 2 * kPart)), absl::OkStatus());
}

}  // namespace greedy_client_test
}  // namespace verbena::internal
