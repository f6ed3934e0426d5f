// The outcome that Finish() tells is true when a stream's link dies at any of its steps, on either
// side. VERBENA_STREAM_KILLS in the environment says how many links to kill.

#include <chrono>
#include <cstdlib>
#include <random>
#include <vector>

#include "tests/rpc/link_breaker.h"
#include "tests/rpc/runtime_pair.h"
#include "tests/rpc/stream_ledger.h"
#include "verbena/transport/coro/combinators.h"

namespace verbena::internal {
namespace {

constexpr int kStreamsPerRound = 2 * StreamLedgerClient::kKinds;

int KillsWanted() {
  const char* asked = std::getenv("VERBENA_STREAM_KILLS");
  return asked == nullptr ? 300 : std::atoi(asked);
}

class KilledStreamsTest : public RuntimePair {
 protected:
  KilledStreamsTest() {
    server_runtime_ = StartRuntime();
    ServeWith(service_);
    client_runtime_ = StartRuntime();
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
  }

  Task<absl::Status> Round() {
    StreamLedgerClient client(*channel_);
    std::vector<uint64_t> ids(kStreamsPerRound);
    for (uint64_t& id : ids) id = next_id_++;
    co_return co_await ForEach(
        std::move(ids), kStreamsPerRound, [&](uint64_t id) -> Task<absl::Status> {
          check_.Add(co_await client.Call(id, id % StreamLedgerClient::kKinds));
          co_return absl::OkStatus();
        });
  }

  StreamLedgerService service_;
  LinkBreaker breaker_;
  // Apart from the ids of calls that other tests of this program note.
  uint64_t next_id_ = Ledger::kMaxCalls / 2;
  OutcomeCheck check_;
};

TEST_F(KilledStreamsTest, FinishTellsTheTruthAtEveryStep) {
  std::mt19937 random(22);
  LinkBreaker::Reset();
  const int wanted = KillsWanted();
  for (int round = 0; LinkBreaker::broken() < wanted; ++round) {
    ASSERT_LT(round, 3 * wanted) << "only " << LinkBreaker::broken() << " links were killed";
    ASSERT_LT(next_id_ + kStreamsPerRound, Ledger::kMaxCalls);
    ASSERT_TRUE(Run(AwaitLink()).ok());
    LinkBreaker::Arm(round % kAllSteps, 1 + static_cast<int>(random() % 8));
    ASSERT_TRUE(Run(Round()).ok());
  }
  LinkBreaker::Arm(0, 0);
  ASSERT_TRUE(Run(Round()).ok());
  server_.reset();
  check_.Finish();
  EXPECT_EQ(check_.false_outcomes(), 0);
  for (Outcome outcome : {Outcome::kNotExecuted, Outcome::kExecuted, Outcome::kMaybeExecuted}) {
    EXPECT_GT(check_.count(outcome), wanted / 10) << OutcomeName(outcome);
  }
  RecordProperty("kills", LinkBreaker::broken());
}

}  // namespace
}  // namespace verbena::internal
