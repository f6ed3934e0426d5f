// The outcome that a caller is told is true when its link dies at any step of its call, on either
// side. VERBENA_LINK_KILLS in the environment says how many links to kill.

#include <cstdlib>
#include <random>
#include <vector>

#include "tests/rpc/ledger_service.h"
#include "tests/rpc/link_breaker.h"
#include "tests/rpc/runtime_pair.h"
#include "verbena/rpc/call/frames.h"
#include "verbena/transport/coro/combinators.h"

namespace verbena::internal {
namespace {

constexpr int kCallsPerRound = 2 * LedgerClient::kKinds;

int KillsWanted() {
  const char* asked = std::getenv("VERBENA_LINK_KILLS");
  return asked == nullptr ? 1000 : std::atoi(asked);
}

class KilledLinksTest : public RuntimePair {
 protected:
  KilledLinksTest() {
    server_runtime_ = StartRuntime();
    ServeWith(service_);
    client_runtime_ = StartRuntime();
    channel_ = std::make_unique<Channel>(*client_runtime_, server_->address());
  }
  Task<absl::Status> Round() {
    LedgerClient client(*channel_);
    std::vector<uint64_t> ids(kCallsPerRound);
    for (uint64_t& id : ids) id = next_id_++;
    co_return co_await ForEach(std::move(ids), kCallsPerRound,
                               [&](uint64_t id) -> Task<absl::Status> {
                                 check_.Add(co_await client.Call(id, id % LedgerClient::kKinds));
                                 co_return absl::OkStatus();
                               });
  }

  LedgerService service_;
  LinkBreaker breaker_;
  uint64_t next_id_ = 0;
  OutcomeCheck check_;
};

TEST_F(KilledLinksTest, OutcomesAreTrueAtEveryStep) {
  std::mt19937 random(20);
  LinkBreaker::Reset();
  const int wanted = KillsWanted();
  for (int round = 0; LinkBreaker::broken() < wanted; ++round) {
    ASSERT_LT(round, 3 * wanted) << "only " << LinkBreaker::broken() << " links were killed";
    ASSERT_LT(next_id_ + kCallsPerRound, Ledger::kMaxCalls);
    ASSERT_TRUE(Run(AwaitLink()).ok());
    LinkBreaker::Arm(round % kCallSteps, 1 + static_cast<int>(random() % 4));
    ASSERT_TRUE(Run(Round()).ok());
  }
  LinkBreaker::Arm(0, 0);
  ASSERT_TRUE(Run(Round()).ok());
  server_.reset();
  check_.Finish();
  EXPECT_EQ(check_.false_outcomes(), 0);
  // A test in which every call ends the same way would prove nothing.
  for (Outcome outcome : {Outcome::kNotExecuted, Outcome::kExecuted, Outcome::kMaybeExecuted}) {
    EXPECT_GT(check_.count(outcome), wanted / 10) << OutcomeName(outcome);
  }
  RecordProperty("kills", LinkBreaker::broken());
}

}  // namespace
}  // namespace verbena::internal
