// Three server processes behind one channel are restarted one after another, while clients call
// without a pause. A restart in order fails no call that waits for a ready server, and of the
// others none that ran or may have run. Servers that are killed come back into service.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/rpc/restartable_server.h"
#include "tests/rpc/testing_service.h"
#include "tests/support/turn.h"
#include "verbena/rpc/channel.h"
#include "verbena/rpc/policy.h"
#include "verbena/rpc/status.h"
#include "verbena/transport/base/status.h"
#include "verbena/transport/coro/scope.h"

namespace verbena {
namespace rolling_restart_test {

using State = ChannelServer::State;

class RollingRestartTest : public RuntimePair {
 protected:
  static constexpr int kServers = 3;
  static constexpr int kRounds = 2;
  static constexpr int kCallers = 16;

  // How the calls of some callers have ended. Used on the client's executor.
  struct Ended {
    uint64_t well = 0;
    uint64_t not_executed = 0;
    uint64_t otherwise = 0;
    absl::Status last_failure = {};
  };

  RollingRestartTest() {
    for (int i = 0; i < kServers; ++i) {
      servers_.push_back(std::make_unique<RestartableServer<TestingService>>(1 + kRounds));
    }
  }

  void TearDown() override {
    if (!load_) return;
    Run(NoteEnd());
    load_.Join();
  }

  void StartAll() {
    std::string target = "static:";
    for (const auto& each : servers_) {
      each->Start();
      target += (target.back() == ':' ? "" : ",") + each->address();
    }
    client_runtime_ = StartRuntime();
    channel_ = std::make_unique<Channel>(*client_runtime_, target);
    stub_ = std::make_unique<testing::Testing::Stub>(*channel_);
    ASSERT_EQ(Run(AwaitStates(kServers)), absl::OkStatus());
    load_ = client_runtime_->Spawn(Load());
  }
  void StopLoad() {
    Run(NoteEnd());
    load_.Join();
    EXPECT_GT(waiting_.well, 0u);
    EXPECT_GT(hasty_.well, 0u);
  }

  // Waits until as many servers are ready.
  Task<absl::Status> AwaitStates(int ready) {
    uint64_t seen = 0;
    for (;;) {
      VERBENA_CO_ASSIGN_OR_RETURN(seen, co_await channel_->ServersChanged(seen));
      VERBENA_CO_ASSIGN_OR_RETURN(const std::vector<ChannelServer> servers, channel_->Servers());
      int found = 0;
      for (const ChannelServer& each : servers) found += each.state == State::kReady ? 1 : 0;
      if (found == ready) co_return absl::OkStatus();
    }
  }

  // The server of that number has answered calls of the load since it was started.
  void ExpectLoadOn(int index) {
    Channel direct(*client_runtime_, servers_[index]->address());
    testing::Testing::Stub stub(direct);
    const auto echoes = [&]() -> Task<uint64_t> {
      const absl::StatusOr<testing::CountReply> count = co_await stub.Count(testing::Empty());
      co_return count.ok() ? count->echoes() : 0;
    };
    Eventually([&] { return Run(echoes()) > 0; }, "the server gets calls");
  }

  std::vector<std::unique_ptr<RestartableServer<TestingService>>> servers_;
  std::unique_ptr<testing::Testing::Stub> stub_;
  Ended waiting_;  // with wait_for_ready
  Ended hasty_;    // without

 private:
  Task<void> Load() {
    TaskScope scope(client_runtime_->executor(0));
    for (int i = 0; i < kCallers; ++i) {
      const bool waits = i % 2 == 0;
      scope.Spawn(CallAgainAndAgain(waits, waits ? waiting_ : hasty_));
    }
    co_await scope.Join();
  }
  Task<void> CallAgainAndAgain(bool waits, Ended& ended) {
    testing::EchoRequest request;
    request.set_number(7);
    while (!ends_) {
      const absl::Status status =
          (co_await stub_->Echo(request,
                                {.deadline = std::chrono::seconds(60), .wait_for_ready = waits}))
              .status();
      if (status.ok()) {
        ++ended.well;
        continue;
      }
      ended.last_failure = status;
      ++(OutcomeOf(status) == Outcome::kNotExecuted ? ended.not_executed : ended.otherwise);
      // Others run before the next call, which may fail at once.
      co_await Turn(client_runtime_->executor(0));
    }
  }
  Task<void> NoteEnd() {
    ends_ = true;
    co_return;
  }

  JoinHandle<void> load_;
  bool ends_ = false;
};

TEST_F(RollingRestartTest, ARestartInOrderFailsNoCallThatWaitsForReady) {
  StartAll();
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kServers; ++i) {
      servers_[i]->Stop();
      servers_[i]->Start();
      ASSERT_EQ(Run(AwaitStates(kServers)), absl::OkStatus());
      ExpectLoadOn(i);
    }
  }
  StopLoad();
  EXPECT_EQ(waiting_.not_executed, 0u) << waiting_.last_failure;
  EXPECT_EQ(waiting_.otherwise, 0u) << waiting_.last_failure;
  EXPECT_EQ(hasty_.otherwise, 0u) << hasty_.last_failure;
}

TEST_F(RollingRestartTest, ServersThatAreKilledComeBackAndOnlyTheirOwnCallsFail) {
  StartAll();
  uint64_t kills = 0;
  for (int i = 0; i < kServers; ++i) {
    servers_[i]->Kill();
    ++kills;
    ASSERT_EQ(Run(AwaitStates(kServers - 1)), absl::OkStatus());
    servers_[i]->Start();
    ASSERT_EQ(Run(AwaitStates(kServers)), absl::OkStatus());
    ExpectLoadOn(i);
  }
  StopLoad();
  // A caller has one call at a time, so a kill fails one of its calls at most.
  const uint64_t failed =
      waiting_.not_executed + waiting_.otherwise + hasty_.not_executed + hasty_.otherwise;
  EXPECT_LE(failed, kills * kCallers) << waiting_.last_failure << " " << hasty_.last_failure;
}

}  // namespace rolling_restart_test
}  // namespace verbena
