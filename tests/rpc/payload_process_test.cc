// Payloads between two processes over the shared-memory wire arrive whole. If one process is killed
// or frozen in the middle of a transfer, no memory of the other is lost or overwritten.

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/first_device.h"
#include "tests/rpc/payload_service.h"
#include "tests/rpc/server_process.h"
#include "tests/support/turn.h"
#include "tests/support/watched.h"
#include "verbena/transport/coro/scope.h"

namespace verbena::internal {
namespace payload_process_test {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kBytes = 4 << 20;

class PayloadProcessTest : public PayloadFixture {
 protected:
  PayloadProcessTest() : process_(Fork("127.0.0.1:0")) {}

  static std::unique_ptr<ServerProcess<PayloadService>> Fork(const std::string& address) {
    return std::make_unique<ServerProcess<PayloadService>>(address);
  }

  void Start(Duration ping_interval = LinkLimits().ping_interval) {
    LinkLimits limits;
    limits.ping_interval = ping_interval;
    StartClientOf(process_->address(), {.limits = limits});
  }

  Task<absl::Status> PutOnce(size_t bytes, Deadline deadline = {}) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await Filled(bytes));
    testing::PutReply reply;
    VERBENA_CO_RETURN_IF_ERROR(
        co_await stub_->Put(testing::PutRequest(), reply,
                            {.deadline = deadline, .request_payload = std::move(buffer)}));
    EXPECT_TRUE(reply.right());
    co_return absl::OkStatus();
  }
  Task<absl::Status> GetOnce(size_t bytes, Deadline deadline = {}) {
    VERBENA_CO_ASSIGN_OR_RETURN(Buffer buffer, co_await channel_->AllocateBuffer(bytes));
    testing::GetRequest request;
    request.set_bytes(bytes);
    WithPayload<testing::GetReply> reply;
    VERBENA_CO_RETURN_IF_ERROR(co_await stub_->Get(
        request, reply, {.deadline = deadline, .response_payload_into = std::move(buffer)}));
    EXPECT_EQ(reply.payload.size(), bytes);
    EXPECT_TRUE(IsPattern(reply.payload.view()));
    co_return absl::OkStatus();
  }

  Task<absl::Status> GetNothing() {
    WithPayload<testing::GetReply> reply;
    co_return co_await stub_->Get(testing::GetRequest(), reply, {.deadline = seconds(10)});
  }

  // Keeps the server copying into our memory until that fails.
  Task<void> GetRaw(TimePoint until) {
    testing::GetRequest request;
    request.set_bytes(kBytes);
    request.set_how(testing::RAW);
    for (absl::Status status; status.ok();) {
      absl::StatusOr<Buffer> buffer = co_await channel_->AllocateBuffer(kBytes);
      if (!buffer.ok()) break;
      WithPayload<testing::GetReply> reply;
      status = co_await stub_->Get(
          request, reply, {.deadline = until, .response_payload_into = *std::move(buffer)});
      ++raw_gets_;
      if (status.ok()) continue;
      EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)) << status;
    }
    raw_gets_ = kEnoughRawGets;
  }

  // Lets turns of the client's executor pass.
  Task<void> Pass(uint32_t turns) {
    for (uint32_t i = 0; i < turns; ++i) co_await Turn(client_runtime_->executor(0));
  }

  // Calls of both kinds, until `strike` has come after so many turns; how they ended.
  template <typename Strike>
  Task<std::vector<absl::Status>> StruckBy(uint32_t turns, Deadline deadline, Strike strike) {
    std::vector<absl::Status> ended;
    TaskScope scope(client_runtime_->executor(0));
    for (int i = 0; i < 8; ++i) {
      scope.Spawn([this, i, deadline, &ended]() -> Task<void> {
        absl::Status status =
            i % 2 == 0 ? co_await GetOnce(kBytes, deadline) : co_await PutOnce(kBytes, deadline);
        ended.push_back(std::move(status));
      });
    }
    co_await Pass(turns);
    strike();
    co_await scope.Join();
    co_return ended;
  }

  // Freezes the server so many turns after it is at work.
  Task<absl::Status> Freeze(uint32_t turns) {
    TaskScope scope(client_runtime_->executor(0));
    const TimePoint until = Clock::Real().Now() + milliseconds(500);
    raw_gets_ = 0;
    for (int i = 0; i < 4; ++i) scope.Spawn(GetRaw(until));
    (void)co_await raw_gets_.Until([](int gets) { return gets >= kEnoughRawGets; });
    co_await Pass(turns);
    process_->Signal(SIGSTOP);
    co_await scope.Join();
    co_return absl::OkStatus();
  }

  Task<std::vector<Buffer>> TakeAllMemory() {
    std::vector<Buffer> all = co_await TakeAll(PayloadMemoryOf(*client_runtime_)->send(), kBytes);
    for (const Buffer& buffer : all) std::memset(buffer.data(), 'W', buffer.size());
    co_return all;
  }

  void ExpectClientsMemoryHome() {
    Eventually([this] { return HeldBy(*client_runtime_).bytes == 0; },
               "the client's memory is home");
  }

  // So many calls, or one that fails, show that the server is at work.
  static constexpr int kEnoughRawGets = 8;

  std::unique_ptr<ServerProcess<PayloadService>> process_;
  Watched<int> raw_gets_;  // that have ended
};

TEST_F(PayloadProcessTest, PayloadsArriveWhole) {
  Start();
  for (size_t bytes : {size_t{1}, size_t{4096}, size_t{300'001}, size_t{16} << 20}) {
    EXPECT_EQ(Run(PutOnce(bytes)), absl::OkStatus()) << bytes;
    EXPECT_EQ(Run(GetOnce(bytes)), absl::OkStatus()) << bytes;
  }
  ExpectClientsMemoryHome();
}

TEST_F(PayloadProcessTest, AServerThatIsKilledAmongTransfersLosesNoMemoryOfTheClient) {
  Start();
  const auto seed = std::random_device()();
  std::mt19937 random(seed);
  for (const absl::Status& status :
       Run(StruckBy(random() % 1000, {}, [this] { process_->Kill(); }))) {
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    }
  }
  SCOPED_TRACE(seed);
  ExpectClientsMemoryHome();
}

// Whatever the server was doing when it was frozen, what it does afterwards changes no memory that
// the client has by then.
TEST_F(PayloadProcessTest, AServerThatIsFrozenAmongTransfersWritesNowhereWhenItGoesOn) {
  // A link that is lost while the server is only slow is replaced.
  Start(/*ping_interval=*/milliseconds(200));
  const auto seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 4; ++round) {
    // Connected, and the server's memory warm.
    Eventually([this] { return Run(GetOnce(kBytes, seconds(10))).ok(); }, "the channel is there");
    (void)Run(Freeze(random() % 500));
    // Its silence ends the link, and what it provably cannot reach comes back.
    Eventually([this] { return HeldBy(*client_runtime_).leases == 0; }, "the link is gone");
    std::vector<Buffer> all = Run(TakeAllMemory());
    process_->Signal(SIGCONT);
    // Once it answers again it has done what it was at. These calls take no memory.
    Eventually([this] { return Run(GetNothing()).ok(); }, "the server goes on");
    for (const Buffer& buffer : all) {
      ASSERT_EQ(std::string(buffer.data(), buffer.size()).find_first_not_of('W'), std::string::npos)
          << "memory that the application has was written to";
    }
    all.clear();
    ExpectClientsMemoryHome();
  }
}

}  // namespace payload_process_test
}  // namespace verbena::internal
